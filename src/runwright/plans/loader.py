"""Load plans and playbooks: YAML or JSON text, a file, or data, to an ExecutionPlan or all of its problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, Order
from runwright.contract.plan_struct import make_canonical
from runwright.plans.playbook.reader import is_playbook, read_playbook
from runwright.plans.playbook.task_kinds import PLAYBOOK_TOOL_PREFIX
from runwright.plans.yaml.document import MAX_BYTES, Document, data_problems

from .dependency_graph import DependencyGraph
from .field_reader import FieldReader, check_step_count
from .header import PlanHeader, read_header
from .input_checks import ToolsByKind
from .json_values import check_json_values
from .load_limits import check_cancelled
from .problems import (
    INVALID_PLAN,
    LoadedPlan,
    PlanInvalid,
    ProblemCollector,
    TooManyProblems,
    did_you_mean,
    quoted_list,
    sub_plan_problem,
)
from .reference_checks import ReferenceChecker
from .registry import SUB_PLAN
from .steps import ParsedStep, read_step

Link = Callable[[str], str]
"""Load the plan in a file that a step names, and return a reference to it."""


def load_plan(source: bytes | str, *, name: str = "plan", tools: ToolsByKind, link: Link | None = None) -> LoadedPlan:
    """Load a plan from YAML or JSON text. `name` is the file name in its problems. Raises PlanInvalid."""
    document = Document(source, name)
    problems = ProblemCollector()
    plan = _read_or_stop(document.data, tools, problems, link)
    if plan is None or document.syntax_problems:
        raise PlanInvalid(document.problems(problems.errors))
    return LoadedPlan(plan, tuple(document.problems(problems.warnings)), tuple(problems.sub_plans))


def load_plan_file(path: Path, tools: ToolsByKind, link: Link | None = None) -> LoadedPlan:
    """Load a plan from a YAML or JSON file. Raises PlanInvalid, or PLAN_NOT_FOUND if the file cannot be read."""
    try:
        with path.open("rb") as file:
            source = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"Cannot read the plan {path}: {reason}.") from error
    return load_plan(source, name=str(path), tools=tools, link=link)


def plan_from_dict(
    document: Mapping[str, Any], tools: ToolsByKind, name: str = "plan", link: Link | None = None
) -> LoadedPlan:
    """Load a plan from data. Its problems have paths but no lines. Raises PlanInvalid."""
    problems = ProblemCollector()
    with suppress(TooManyProblems):
        check_json_values(document, problems)
    if problems.errors:
        raise PlanInvalid(data_problems(name, problems.errors))
    data = msgspec.json.decode(msgspec.json.encode(document))  # a copy: the caller may change the document later
    plan = _read_or_stop(data, tools, problems, link)
    if plan is None:
        raise PlanInvalid(data_problems(name, problems.errors))
    return LoadedPlan(plan, tuple(data_problems(name, problems.warnings)), tuple(problems.sub_plans))


def _read_or_stop(data: Any, tools: ToolsByKind, problems: ProblemCollector, link: Link | None) -> ExecutionPlan | None:
    try:
        return _read(data, tools, problems, link)
    except TooManyProblems:
        return None


def _read(data: Any, tools: ToolsByKind, problems: ProblemCollector, link: Link | None) -> ExecutionPlan | None:
    """Return the plan, or None if errors were found."""
    if not isinstance(data, dict):
        sentence = (
            f"{'The document is empty. ' if data is None else ''}A plan must be a mapping with `plan` and `steps`, "
            "a playbook a mapping with `kind: Playbook` and `workflow`."
        )
        problems.error((), INVALID_PLAN, sentence)
        return None
    check_json_values(data, problems)
    if problems.errors:
        return None  # the readers rely on JSON values
    if is_playbook(data):
        return read_playbook(cast("dict[str, Any]", data), tools, problems, link)
    top = FieldReader(cast("dict[str, Any]", data), (), INVALID_PLAN, problems)
    header = read_header(top, problems)
    plan_tools = {kind: tool for kind, tool in tools.items() if not kind.startswith(PLAYBOOK_TOOL_PREFIX)}
    steps = _read_steps(top, plan_tools, problems)
    if link is not None:
        for parsed in steps:
            _link_step(parsed, link, problems)
    order = _check_order(header, steps, problems)
    references = ReferenceChecker(steps, {**header.param_types, **header.params}, problems)
    references.check(order)
    references.check_result(header.result)
    if not problems.errors:
        references.check_conditions(header.on_failure)
    if problems.errors or order is None:
        return None
    return make_canonical(
        ExecutionPlan,
        metadata=header.metadata,
        params=header.params,
        param_types=header.param_types,
        order=order,
        on_failure=header.on_failure,
        timeout=header.timeout,
        steps=tuple(parsed.step for parsed in steps),
        result=header.result,
    )


def _read_steps(top: FieldReader, tools: ToolsByKind, problems: ProblemCollector) -> list[ParsedStep]:
    data = top.raw("steps")
    if not isinstance(data, list) or not data:
        if data is None or data == []:
            top.error("steps" if data == [] else None, "The plan has no steps. List them under `steps`.")
        else:
            top.error("steps", "`steps` must be a list.")
        return []
    if not check_step_count(top, "steps", len(cast("list[Any]", data))):
        return []
    steps: list[ParsedStep] = []
    first_index: dict[str, int] = {}
    for index, step_data in enumerate(cast("list[Any]", data)):
        check_cancelled()
        parsed = read_step(step_data, ("steps", index), tools, problems)
        if parsed is None:
            continue
        step_id = parsed.step.step_id
        if first_index.setdefault(step_id, index) != index:
            field = "stepId" if step_data.get("stepId") is not None else "id"
            sentence = f"Duplicate id {step_id!r}: step {first_index[step_id] + 1} of the list has the same id."
            problems.error((*parsed.path, field), INVALID_PLAN, sentence)
        steps.append(parsed)
    return steps


def _link_step(parsed: ParsedStep, link: Link, problems: ProblemCollector) -> None:
    """Replace the file name of a sub-plan by a reference to its content."""
    path = parsed.step.inputs.get("path") if parsed.step.kind == SUB_PLAN else None
    if not isinstance(path, str):
        return
    try:
        inputs = {**parsed.step.inputs, "ref": link(path)}
        del inputs["path"]
        parsed.step = msgspec.structs.replace(parsed.step, inputs=inputs)
    except PlanInvalid as invalid:
        problems.error(parsed.input_path(("path",)), INVALID_PLAN, sub_plan_problem("sub-plan", invalid))
    except RunwrightError as error:
        problems.error(parsed.input_path(("path",)), ErrorCode(error.code), error.detail)


def _check_order(header: PlanHeader, steps: list[ParsedStep], problems: ProblemCollector) -> Order | None:
    """Report unknown dependencies and dependency cycles; return the order of the steps, None if there are cycles."""
    graph = DependencyGraph([parsed.step for parsed in steps])
    for index, parsed in enumerate(steps):
        check_cancelled()
        _check_dependencies(index, parsed, graph, header.order, problems)
    cycles = graph.topological_order().cycles
    for cycle in cycles:
        names = [steps[index].step.step_id for index in cycle]
        sentence = f"Dependency cycle: {' -> '.join([*names, names[0]])}."
        problems.error((*steps[cycle[0]].path, "dependsOn"), INVALID_PLAN, sentence)
    if cycles:
        return None
    if header.order is not None:
        return header.order
    return _default_order(steps, problems)


def _check_dependencies(
    index: int, parsed: ParsedStep, graph: DependencyGraph, order: Order | None, problems: ProblemCollector
) -> None:
    step_id = parsed.step.step_id
    for position, name in enumerate(parsed.step.depends_on):
        other = graph.index_of.get(name)
        if other is None:
            sentence = f"Unknown step {name!r} in `dependsOn`.{did_you_mean(name, graph.index_of)}"
        elif other == index:
            sentence = f"The step {name!r} depends on itself."
        elif order is Order.SEQUENTIAL and other > index:
            sentence = f"In sequential order {step_id!r} cannot depend on {name!r}, which is declared later."
        else:
            continue
        problems.error((*parsed.path, "dependsOn", position), INVALID_PLAN, sentence)


def _default_order(steps: list[ParsedStep], problems: ProblemCollector) -> Order:
    """Return sequential order, or graph order if any step has dependencies."""
    independent = [parsed for parsed in steps if not parsed.step.depends_on]
    if len(independent) == len(steps):
        return Order.SEQUENTIAL
    if len(independent) > 1:
        names = quoted_list(parsed.step.step_id for parsed in independent)
        sentence = (
            f"Some steps have `dependsOn`, so the plan is a graph and {names} start immediately. "
            "Write `order: graph` if this is intended."
        )
        problems.warning(independent[1].path, sentence)
    return Order.GRAPH
