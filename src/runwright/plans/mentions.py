"""What the expressions of a plan mention: names, parameters and steps that are there, and steps that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from runwright.contract.plan import Order
from runwright.core.expressions import (
    BUILT_IN,
    ExpressionError,
    check,
    check_single,
    condition_text,
    mentioned_fields,
    mentioned_names,
    mentioned_steps,
)

from .dependencies import Graph
from .problems import EXPRESSION, Findings, Path, did_you_mean
from .steps import SCOPE, ReadStep


class Mentions:
    """Looks at the expressions of one plan."""

    def __init__(self, steps: Sequence[ReadStep], params: dict[str, Any], findings: Findings) -> None:
        self._steps = steps
        self._params = params
        self._findings = findings
        self._graph = Graph([read.step for read in steps])
        self._pairs: dict[tuple[int, int], list[Path]] = {}

    def check(self, order: Order | None) -> None:
        """Note all that is wrong. Without an order, which step has ended before which is not asked."""
        for number, read in enumerate(self._steps):
            for path, text, names, check_syntax in _expressions(read):
                try:
                    check_syntax(text)
                    self._check_names(number, path, text, names)
                except ExpressionError as error:
                    self._wrong(path, error.detail)
        if order is not None and self._pairs:
            self._check_order(order)

    def check_result(self, result: Any) -> None:
        """What the run gives back may use every step: all of them have ended then."""
        for path, text, names, check_syntax in _texts(result, ("result",), SCOPE - {"step"}, check):
            try:
                check_syntax(text)
                self._check_names(None, path, text, names)
            except ExpressionError as error:
                self._wrong(path, error.detail)

    def _check_names(self, number: int | None, path: Path, text: str, names: frozenset[str]) -> None:
        mentioned = mentioned_names(text)
        for name in sorted(mentioned - names - BUILT_IN):
            self._wrong(path, f"There is no {name!r} here.{did_you_mean(name, names)}")
        if "params" in mentioned:
            for name in sorted((mentioned_fields("params", [text]) or frozenset()) - self._params.keys()):
                self._wrong(path, f"The plan has no parameter {name!r}.{did_you_mean(name, self._params)}")
        if "steps" in mentioned:
            for name in sorted(mentioned_steps([text]) or ()):
                other = self._graph.numbers.get(name)
                if other is None:
                    self._wrong(path, f"There is no step {name!r}.{did_you_mean(name, self._graph.numbers)}")
                elif number is not None:
                    self._pairs.setdefault((number, other), []).append(path)

    def _check_order(self, order: Order) -> None:
        for pair in sorted(self._graph.not_before(order, self._pairs)):
            step, other = (self._steps[number].step.step_id for number in pair)
            how = "declare it earlier" if order is Order.SEQUENTIAL else f"let {step!r} depend on it"
            for path in self._pairs[pair]:
                self._wrong(path, f"The step {other!r} is not sure to have ended before {step!r} starts; {how}.")

    def _wrong(self, path: Path, sentence: str) -> None:
        self._findings.error(path, EXPRESSION, sentence)


Text = tuple[Path, str, frozenset[str], Callable[[str], None]]
"""A text that can hold expressions: where it is, what it is, the names it has, and what checks its syntax."""


def _expressions(read: ReadStep) -> Iterator[Text]:
    step = read.step
    names = SCOPE
    if isinstance(step.when, str):
        yield (*read.path, "when"), condition_text(step.when), names, check_single
    if step.foreach is not None:
        is_text = isinstance(step.foreach.items, str)
        yield from _texts(step.foreach.items, (*read.path, "foreach", "in"), names, check_single if is_text else check)
        names = SCOPE | {step.foreach.item_name, "index"}
    for path, text, known, check_syntax in _texts(step.inputs, (), names, check):
        yield read.input_path(path), text, known, check_syntax


def _texts(value: Any, path: Path, names: frozenset[str], check_syntax: Callable[[str], None]) -> Iterator[Text]:
    if isinstance(value, str):
        if "{" in value:
            yield path, value, names, check_syntax
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _texts(item, (*path, key), names, check_syntax)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(cast("list[Any]", value)):
            yield from _texts(item, (*path, place), names, check_syntax)
