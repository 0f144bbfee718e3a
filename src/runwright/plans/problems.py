"""What is wrong with a plan, and where. Everything is found first and told together, not one mistake at a time."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan

Path = tuple[str | int, ...]
"""Where something is in a document: names of fields and numbers of items, from the top."""

WARNING = "WARNING"

PLAN = ErrorCode.INVALID_PLAN_SCHEMA
STEP = ErrorCode.INVALID_STEP_SCHEMA
EXPRESSION = ErrorCode.EXPRESSION_ERROR


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong. Line and column count from 1; a plan that came as data has none, only a path."""

    file: str
    line: int | None
    column: int | None
    code: str
    sentence: str
    path: str = ""

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.line}:{self.column}"
        return (
            f"{self.file}:{place}: {self.code} {self.sentence}"
            if place
            else f"{self.file}: {self.code} {self.sentence}"
        )


class Loaded(msgspec.Struct, frozen=True):
    plan: ExecutionPlan
    warnings: tuple[Problem, ...] = ()
    parts: tuple[ExecutionPlan, ...] = ()
    """Plans that were made of parts of it, and that steps of it are runs of."""


class PlanInvalid(RunwrightError):
    """A plan that cannot be used. Its code is that of the first problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        more = len(self.problems) - 1
        rest = f" ({more} more {'problem' if more == 1 else 'problems'} in this plan.)" if more else ""
        super().__init__(
            ErrorCode(first.code), f"{first.sentence}{rest}", problems=[str(each) for each in self.problems]
        )


class Finding(msgspec.Struct, frozen=True):
    """A problem before its line is known."""

    path: Path
    code: str
    sentence: str
    on_key: bool = False  # it is the name of the field that is wrong, not its value


class Findings:
    """What was found so far."""

    def __init__(self) -> None:
        self.errors: list[Finding] = []
        self.warnings: list[Finding] = []
        self.parts: list[ExecutionPlan] = []

    def error(self, path: Path, code: ErrorCode, sentence: str, *, on_key: bool = False) -> None:
        self.errors.append(Finding(path, code, sentence, on_key))

    def warning(self, path: Path, sentence: str) -> None:
        self.warnings.append(Finding(path, WARNING, sentence))


def path_text(path: Path) -> str:
    """`steps[2].retry`"""
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
    """` Did you mean 'x'?`, or nothing where nothing is near."""
    close = get_close_matches(name[:200], list(names), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def listed(names: Iterable[str], most: int = 10) -> str:
    """`'a', 'b' and 3 more`"""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
