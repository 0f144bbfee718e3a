"""Check the references in expressions of a plan: known names, parameters and steps, and steps that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, cast

from runwright.contract.errors import RunwrightError
from runwright.contract.plan import OnFailure, Order
from runwright.contract.transitions import StepStatus
from runwright.core.expressions.template import (
    BUILT_IN_NAMES,
    ExpressionError,
    check,
    check_single,
    condition_text,
    is_true,
    mentioned_fields,
    mentioned_names,
    mentioned_steps,
)

from .dependency_graph import DependencyGraph
from .problems import INVALID_EXPRESSION, DocumentPath, ProblemCollector, did_you_mean
from .steps import PLAN_SCOPE, ParsedStep


class _StepTemplate(NamedTuple):
    """A text that may contain expressions."""

    path: DocumentPath
    text: str
    scope: frozenset[str]  # the names that its expressions may use
    check_syntax: Callable[[str], None]


_MAX_CONDITION_STEPS = 6


def _never_holds(condition: str | bool, on_failure: OnFailure) -> bool:
    """Whether a condition is false for every end of the steps it mentions. False if it depends on anything else."""
    if isinstance(condition, bool):
        return not condition
    text = condition_text(condition)
    try:
        steps = mentioned_steps([text])
        if steps is None or len(steps) > _MAX_CONDITION_STEPS or mentioned_names(text) - {"steps"}:
            return False
        statuses = _ENDS if on_failure is OnFailure.FAIL else (*_ENDS, StepStatus.FAILED)
        for ends in product(statuses, repeat=len(steps)):
            scope = {name: {"status": str(status)} for name, status in zip(sorted(steps), ends, strict=True)}
            if is_true(text, {"steps": scope}):
                return False
    except RunwrightError:
        return False  # it uses results; or it is invalid, which is reported elsewhere
    return True


_ENDS = (StepStatus.SUCCESS, StepStatus.SKIPPED)


class ReferenceChecker:
    """Checks the expressions of one plan."""

    def __init__(self, steps: Sequence[ParsedStep], params: dict[str, Any], problems: ProblemCollector) -> None:
        self._steps = steps
        self._params = params
        self._problems = problems
        self._graph = DependencyGraph([parsed.step for parsed in steps])
        self._step_references: dict[tuple[int, int], list[DocumentPath]] = {}  # (step, step it refers to) -> paths

    def check(self, order: Order | None) -> None:
        """Report all invalid references. Without an order, it is not checked which step ends before which."""
        for index, parsed in enumerate(self._steps):
            self._check_templates(index, _step_templates(parsed))
        if order is not None and self._step_references:
            self._check_order(order)

    def check_conditions(self, on_failure: OnFailure) -> None:
        """Warn of conditions that are false however the earlier steps end."""
        for parsed in self._steps:
            if parsed.step.when is not None and _never_holds(parsed.step.when, on_failure):
                sentence = "This condition never holds: the step is always skipped."
                self._problems.warning((*parsed.path, "when"), sentence)

    def check_result(self, result: Any) -> None:
        """Check the plan's `result`. It may use every step, because it is evaluated when all steps have ended."""
        self._check_templates(None, _templates(result, ("result",), PLAN_SCOPE - {"step"}, check))

    def _check_templates(self, index: int | None, templates: Iterable[_StepTemplate]) -> None:
        for template in templates:
            try:
                template.check_syntax(template.text)
                self._check_names(index, template)
            except ExpressionError as error:
                self._error(template.path, error.detail)

    def _check_names(self, index: int | None, template: _StepTemplate) -> None:
        path, text = template.path, template.text
        mentioned = mentioned_names(text)
        for name in sorted(mentioned - template.scope - BUILT_IN_NAMES):
            self._error(path, f"Unknown name {name!r}.{did_you_mean(name, template.scope)}")
        if "params" in mentioned:
            for name in sorted((mentioned_fields("params", [text]) or frozenset()) - self._params.keys()):
                self._error(path, f"Unknown parameter {name!r}.{did_you_mean(name, self._params)}")
        if "steps" in mentioned:
            for name in sorted(mentioned_steps([text]) or ()):
                other = self._graph.index_of.get(name)
                if other is None:
                    self._error(path, f"Unknown step {name!r}.{did_you_mean(name, self._graph.index_of)}")
                elif index is not None:
                    self._step_references.setdefault((index, other), []).append(path)

    def _check_order(self, order: Order) -> None:
        for pair in sorted(self._graph.find_unordered(order, self._step_references)):
            step, other = (self._steps[index].step.step_id for index in pair)
            advice = "Declare it earlier." if order is Order.SEQUENTIAL else f"Add it to `dependsOn` of {step!r}."
            for path in self._step_references[pair]:
                self._error(path, f"Step {other!r} may not have ended before {step!r} starts. {advice}")

    def _error(self, path: DocumentPath, sentence: str) -> None:
        self._problems.error(path, INVALID_EXPRESSION, sentence)


def _step_templates(parsed: ParsedStep) -> Iterator[_StepTemplate]:
    step = parsed.step
    scope = PLAN_SCOPE
    if isinstance(step.when, str):
        yield _StepTemplate((*parsed.path, "when"), condition_text(step.when), scope, check_single)
    if step.foreach is not None:
        items = step.foreach.items
        check_syntax = check_single if isinstance(items, str) else check
        yield from _templates(items, (*parsed.path, "foreach", "in"), scope, check_syntax)
        scope = PLAN_SCOPE | {step.foreach.item_name, "index"}
    for template in _templates(step.inputs, (), scope, check):
        yield template._replace(path=parsed.input_path(template.path))


def _templates(
    value: Any, path: DocumentPath, scope: frozenset[str], check_syntax: Callable[[str], None]
) -> Iterator[_StepTemplate]:
    if isinstance(value, str):
        if "{" in value:
            yield _StepTemplate(path, value, scope, check_syntax)
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _templates(item, (*path, key), scope, check_syntax)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _templates(item, (*path, index), scope, check_syntax)
