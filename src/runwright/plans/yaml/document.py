"""Documents: bytes of a plan to plain data. YAML and JSON are distinguished by content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from runwright.plans.problems import INVALID_PLAN, MAX_PROBLEMS, PathProblem, PlanInvalid, Problem, path_text

from .positions import Position, Positions, YamlToken, find_positions, json_tokens, yaml_tokens
from .reader import PlanYamlError, YamlReader

MAX_BYTES = 8 * 2**20
"""Maximum size of a plan."""

# Characters that YAML does not allow. They are searched for here because the error of the YAML parser has no line.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


class Document:
    """A plan as plain data, with the positions of problems in its text. Raises PlanInvalid if it cannot be parsed."""

    def __init__(self, source: bytes | str, file: str) -> None:
        self.file = file
        self.syntax_problems: list[Problem] = []  # those that did not prevent reading the rest
        self._text = self._decode(source)
        self._is_json = False
        self.data = self._read()

    def problems(self, path_problems: Iterable[PathProblem]) -> list[Problem]:
        """Return these problems with their positions, and the syntax problems, in the order of the text."""
        path_problems = list(path_problems)
        positions = Positions()
        if path_problems:
            positions = find_positions(self._tokens(), [problem.path for problem in path_problems])
        problems = [self._locate(problem, positions) for problem in path_problems]
        ordered = sorted(
            [*self.syntax_problems, *problems], key=lambda problem: (problem.line or 0, problem.column or 0)
        )
        return ordered[:MAX_PROBLEMS]

    def _locate(self, problem: PathProblem, positions: Positions) -> Problem:
        position = positions.of(problem.path, problem.on_key)
        return Problem(self.file, *position, problem.code, problem.sentence, path_text(problem.path))

    def _tokens(self) -> Iterable[YamlToken]:
        return json_tokens(self._text) if self._is_json else yaml_tokens(self._text)

    def _decode(self, source: bytes | str) -> str:
        size = len(source) if isinstance(source, bytes) else len(source.encode(errors="replace"))
        if size > MAX_BYTES:
            raise self._invalid(f"A plan must have at most {MAX_BYTES // 2**20} MiB; this one has {size:,} bytes.")
        try:
            text = source.decode() if isinstance(source, bytes) else source
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode()
            raise self._invalid("Invalid UTF-8.", _end_of(before)) from error
        return text.removeprefix("\ufeff")

    def _read(self) -> Any:
        if self._text.lstrip()[:1] in ("{", "["):
            try:
                return self._read_json()
            except json.JSONDecodeError as error:
                if self.file.endswith(".json"):
                    raise self._invalid(f"Invalid JSON: {error.msg}.", Position(error.lineno, error.colno)) from error
            except (ValueError, RecursionError) as error:
                raise self._invalid("Invalid JSON: a number is too long, or the nesting too deep.") from error
        return self._read_yaml()

    def _read_json(self) -> Any:
        has_duplicates = False

        def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            nonlocal has_duplicates
            data = dict(pairs)
            has_duplicates = has_duplicates or len(data) < len(pairs)
            return data

        data = json.loads(self._text, object_pairs_hook=mapping)
        self._is_json = True
        if has_duplicates:
            self.syntax_problems += [
                self._problem(key.position, f"Duplicate field {key.name!r}.") for key in _duplicate_keys(self._text)
            ]
        return data

    def _read_yaml(self) -> Any:
        if control := _CONTROL.search(self._text):
            sentence = f"The character U+{ord(control[0]):04X} is not allowed in YAML."
            raise self._invalid(sentence, _end_of(self._text[: control.start()]))
        reader = YamlReader(self._text)
        try:
            data = reader.read()
        except PlanYamlError as error:
            raise PlanInvalid(self._located([*reader.problems, error])[-MAX_PROBLEMS:]) from error
        self.syntax_problems += self._located(reader.problems)
        return data

    def _located(self, errors: list[PlanYamlError]) -> list[Problem]:
        ordered = sorted((Position(error.line, error.column), error.sentence) for error in errors)
        return [self._problem(position, sentence) for position, sentence in ordered]

    def _invalid(self, sentence: str, position: Position = Position(1, 1)) -> PlanInvalid:  # noqa: B008 - immutable
        return PlanInvalid([self._problem(position, sentence)])

    def _problem(self, position: Position, sentence: str) -> Problem:
        return Problem(self.file, *position, INVALID_PLAN, sentence)


def _end_of(text: str) -> Position:
    line = text.count("\n") + 1
    return Position(line, len(text) - (text.rfind("\n") + 1) + 1)


class _Key(NamedTuple):
    name: str
    position: Position


def _duplicate_keys(text: str) -> list[_Key]:
    """Find the keys that occur again in the same object of a JSON text."""
    found: list[_Key] = []
    open_keys: list[set[str] | None] = []  # for each open object the keys so far; None for a list
    expects_key: list[bool] = []
    for token in json_tokens(text):
        if token.sign == "}":
            open_keys.pop()
            expects_key.pop()
            continue
        keys = open_keys[-1] if open_keys else None
        if keys is not None:
            if expects_key[-1]:
                if token.text in keys:
                    found.append(_Key(token.text, token.position))
                keys.add(token.text)
            expects_key[-1] = not expects_key[-1]
        if token.sign != ".":
            open_keys.append(set() if token.sign == "{" else None)
            expects_key.append(True)
    return found


def data_problems(file: str, path_problems: Iterable[PathProblem]) -> list[Problem]:
    """Return the problems of a plan that was passed as data: they have a path and no position."""
    return [Problem(file, None, None, each.code, each.sentence, path_text(each.path)) for each in path_problems]
