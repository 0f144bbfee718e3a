"""From a plan as people write it to an ExecutionPlan, or to all that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, Order

from .dependencies import Graph
from .document import LARGEST, Document, data_problems
from .fields import Fields
from .header import Header, read_header
from .kinds import Kinds
from .known import SUB_PLAN
from .mentions import Mentions
from .parts import make_part
from .playbook import is_playbook, read_playbook
from .playbook_kinds import DIALECT
from .problems import PLAN, Findings, Loaded, PlanInvalid, did_you_mean, listed
from .steps import ReadStep, read_step
from .values import check_values

Link = Callable[[str], str]
"""Reads the plan in a file that a step names, and gives back a reference to it."""


def load_plan(source: bytes | str, *, name: str = "plan", kinds: Kinds, link: Link | None = None) -> Loaded:
    """The plan that this YAML or JSON text is. `name` is what its problems call the file."""
    document = Document(source, name)
    findings = Findings()
    plan = _read(document.data, kinds, findings, link)
    if plan is None or document.noted:
        raise PlanInvalid(document.problems(findings.errors))
    return Loaded(plan, tuple(document.problems(findings.warnings)), tuple(findings.parts))


def load_plan_file(path: FilePath, kinds: Kinds, link: Link | None = None) -> Loaded:
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"The plan {path} cannot be read: {reason}.") from error
    return load_plan(source, name=str(path), kinds=kinds, link=link)


def plan_from_dict(document: Mapping[str, Any], kinds: Kinds, name: str = "plan", link: Link | None = None) -> Loaded:
    """The plan that this data is. Its problems name fields, as data has no lines."""
    findings = Findings()
    check_values(document, findings)
    if findings.errors:
        raise PlanInvalid(data_problems(name, findings.errors))
    data = msgspec.json.decode(msgspec.json.encode(document))  # a copy: the plan must not change with what it came from
    plan = _read(data, kinds, findings, link)
    if plan is None:
        raise PlanInvalid(data_problems(name, findings.errors))
    return Loaded(plan, tuple(data_problems(name, findings.warnings)), tuple(findings.parts))


def _read(data: Any, kinds: Kinds, findings: Findings, link: Link | None) -> ExecutionPlan | None:
    """The plan, or None if errors were found."""
    if not isinstance(data, dict):
        what = "This is empty. " if data is None else ""
        findings.error(
            (),
            PLAN,
            f"{what}A plan is a mapping with `plan` and `steps`, a playbook one with `kind: Playbook` and `workflow`.",
        )
        return None
    check_values(data, findings)
    if findings.errors:
        return None  # what JSON cannot hold would only trip whoever looks closer
    if is_playbook(data):
        return read_playbook(cast("dict[str, Any]", data), kinds, findings, link)
    top = Fields(cast("dict[str, Any]", data), (), PLAN, findings)
    header = read_header(top, findings)
    own = {name: kind for name, kind in kinds.items() if not name.startswith(DIALECT)}
    reads = _read_steps(top, own, findings)
    if link is not None:
        for read in reads:
            _link_step(read, link, findings)
    order = _order(header, reads, findings)
    mentions = Mentions(reads, {**header.param_types, **header.params}, findings)
    mentions.check(order)
    mentions.check_result(header.result)
    if findings.errors or order is None:
        return None
    return make_part(
        ExecutionPlan,
        metadata=header.metadata,
        params=header.params,
        param_types=header.param_types,
        order=order,
        on_failure=header.on_failure,
        timeout=header.timeout,
        steps=tuple(read.step for read in reads),
        result=header.result,
    )


def _read_steps(top: Fields, kinds: Kinds, findings: Findings) -> list[ReadStep]:
    steps = top.raw("steps")
    if not isinstance(steps, list) or not steps:
        if steps is None or steps == []:
            top.wrong("steps" if steps == [] else None, "The plan has no steps. List them under `steps`.")
        else:
            top.wrong("steps", "`steps` is a list.")
        return []
    reads: list[ReadStep] = []
    first: dict[str, int] = {}
    for number, data in enumerate(cast("list[Any]", steps)):
        read = read_step(data, ("steps", number), kinds, findings)
        if read is None:
            continue
        step_id = read.step.step_id
        if first.setdefault(step_id, number) != number:
            field = "stepId" if data.get("stepId") is not None else "id"
            sentence = f"The id {step_id!r} is taken by the step at place {first[step_id] + 1} of the list."
            findings.error((*read.path, field), PLAN, sentence)
        reads.append(read)
    return reads


def _link_step(read: ReadStep, link: Link, findings: Findings) -> None:
    """A plan that a step names by its file is named by its content from here on."""
    path = read.step.inputs.get("path") if read.step.kind == SUB_PLAN else None
    if not isinstance(path, str):
        return
    try:
        inputs = {**read.step.inputs, "ref": link(path)}
        del inputs["path"]
        read.step = msgspec.structs.replace(read.step, inputs=inputs)
    except PlanInvalid as invalid:
        more = len(invalid.problems) - 1
        rest = f", and {more} more" if more else ""
        findings.error(read.input_path(("path",)), PLAN, f"That plan cannot be used: {invalid.problems[0]}{rest}")
    except RunwrightError as error:
        findings.error(read.input_path(("path",)), ErrorCode(error.code), error.detail)


def _order(header: Header, reads: list[ReadStep], findings: Findings) -> Order | None:
    """The order of the steps; None where they have none."""
    graph = Graph([read.step for read in reads])
    for number, read in enumerate(reads):
        _check_names(number, read, graph, header.order, findings)
    _, circles = graph.sorted()
    for circle in circles:
        names = [reads[number].step.step_id for number in circle]
        way = " -> ".join([*names, names[0]])
        sentence = f"These steps depend on each other in a circle: {way}."
        findings.error((*reads[circle[0]].path, "dependsOn"), PLAN, sentence)
    if circles:
        return None
    if header.order is not None:
        return header.order
    return _usual_order(reads, findings)


def _check_names(number: int, read: ReadStep, graph: Graph, order: Order | None, findings: Findings) -> None:
    for place, name in enumerate(read.step.depends_on):
        other = graph.numbers.get(name)
        if other is None:
            sentence = f"There is no step {name!r} to depend on.{did_you_mean(name, graph.numbers)}"
        elif other == number:
            sentence = f"The step {name!r} depends on itself."
        elif order is Order.SEQUENTIAL and other > number:
            sentence = f"In sequential order {read.step.step_id!r} cannot depend on {name!r}, which is declared later."
        else:
            continue
        findings.error((*read.path, "dependsOn", place), PLAN, sentence)


def _usual_order(reads: list[ReadStep], findings: Findings) -> Order:
    """As declared, unless some step says what it depends on."""
    free = [read for read in reads if not read.step.depends_on]
    if len(free) == len(reads):
        return Order.SEQUENTIAL
    if len(free) > 1:
        names = listed(read.step.step_id for read in free)
        sentence = (
            f"Some steps have dependsOn, so the plan is a graph, and {names} start at once. "
            "Write `order: graph` if that is meant."
        )
        findings.warning(free[1].path, sentence)
    return Order.GRAPH
