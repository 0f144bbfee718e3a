"""Problems of a plan and their positions. All problems of a plan are collected and reported together."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan

DocumentPath = tuple[str | int, ...]
"""Path of a value in a document: field names and list indexes, from the top."""

WARNING = "WARNING"

INVALID_PLAN = ErrorCode.INVALID_PLAN_SCHEMA
INVALID_STEP = ErrorCode.INVALID_STEP_SCHEMA
INVALID_EXPRESSION = ErrorCode.EXPRESSION_ERROR


class Problem(msgspec.Struct, frozen=True):
    """One problem of a plan. Line and column count from 1; a plan that was passed as data has only a path."""

    file: str
    line: int | None
    column: int | None
    code: str
    sentence: str
    path: str = ""

    def __str__(self) -> str:
        position = self.path if self.line is None else f"{self.line}:{self.column}"
        location = f"{self.file}:{position}" if position else self.file
        return f"{location}: {self.code} {self.sentence}"


class LoadedPlan(msgspec.Struct, frozen=True):
    """A valid plan and its warnings."""

    plan: ExecutionPlan
    warnings: tuple[Problem, ...] = ()
    sub_plans: tuple[ExecutionPlan, ...] = ()
    """Plans that were generated from parts of the document and that steps of the plan refer to."""


MAX_PROBLEMS = 100
"""Problems after which a plan is not read any further."""

_MAX_SUGGESTED_NAMES = 1000
_MAX_SUGGESTED_LENGTH = 64


class TooManyProblems(Exception):
    """The plan has more problems than are reported."""


class PlanInvalid(RunwrightError):
    """The plan is invalid. The error code is that of the first problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        more = len(self.problems) - 1
        least = "at least " if len(self.problems) >= MAX_PROBLEMS else ""
        rest = f" ({least}{more} more {'problem' if more == 1 else 'problems'} in this plan.)" if more else ""
        super().__init__(
            ErrorCode(first.code), f"{first.sentence}{rest}", problems=[str(each) for each in self.problems]
        )


class PathProblem(msgspec.Struct, frozen=True):
    """A problem at a document path, before its line and column are known."""

    path: DocumentPath
    code: str
    sentence: str
    on_key: bool = False  # the name of the field is wrong, not its value


class ProblemCollector:
    """Collects errors, warnings and generated sub-plans while a document is read.

    `error` raises TooManyProblems with the last problem that is reported.
    """

    def __init__(self) -> None:
        self.errors: list[PathProblem] = []
        self.warnings: list[PathProblem] = []
        self.sub_plans: list[ExecutionPlan] = []

    def error(self, path: DocumentPath, code: ErrorCode, sentence: str, *, on_key: bool = False) -> None:
        self.errors.append(PathProblem(path, code, sentence, on_key))
        if len(self.errors) >= MAX_PROBLEMS:
            raise TooManyProblems

    def warning(self, path: DocumentPath, sentence: str) -> None:
        if len(self.warnings) < MAX_PROBLEMS:
            self.warnings.append(PathProblem(path, WARNING, sentence))


def path_text(path: DocumentPath) -> str:
    """Format a path as `steps[2].retry`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?`, or an empty string if no name is similar."""
    if len(name) > _MAX_SUGGESTED_LENGTH:
        return ""
    candidates = [each for each in islice(names, _MAX_SUGGESTED_NAMES) if len(each) <= _MAX_SUGGESTED_LENGTH]
    close = get_close_matches(name, candidates, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def sub_plan_problem(kind: str, invalid: PlanInvalid) -> str:
    """Report the first problem of a plan that a step refers to by its file. `kind`: `sub-plan` or `playbook`."""
    more = len(invalid.problems) - 1
    rest = f", and {more} more" if more else ""
    return f"Invalid {kind}: {invalid.problems[0]}{rest}"


def quoted_list(names: Iterable[str], limit: int = 10) -> str:
    """Format names as `'a', 'b' and 3 more`."""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit:,} more"
