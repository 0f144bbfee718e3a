"""From the bytes of a plan to plain data: YAML or JSON, told apart by what is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from .places import Place, Places, Token, find_places, json_tokens, yaml_tokens
from .problems import PLAN, Finding, PlanInvalid, Problem, path_text
from .yaml_reader import Unreadable, YamlReader

LARGEST = 8 * 2**20
"""Bytes of a plan."""

# What YAML does not allow. Its own error for these has no line.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


class Document:
    """A plan as plain data, and how to find places in its text."""

    def __init__(self, source: bytes | str, file: str) -> None:
        self.file = file
        self.noted: list[Problem] = []
        self._text = self._decoded(source)
        self._is_json = False
        self.data = self._read()

    def problems(self, findings: Iterable[Finding]) -> list[Problem]:
        """Findings with their lines, in the order of the text."""
        findings = list(findings)
        places = find_places(self._tokens(), [finding.path for finding in findings]) if findings else Places()
        problems = [self._problem(finding, places) for finding in findings]
        return sorted([*self.noted, *problems], key=lambda problem: (problem.line or 0, problem.column or 0))

    def _problem(self, finding: Finding, places: Places) -> Problem:
        line, column = places.of(finding.path, finding.on_key)
        return Problem(self.file, line, column, finding.code, finding.sentence, path_text(finding.path))

    def _tokens(self) -> Iterable[Token]:
        return json_tokens(self._text) if self._is_json else yaml_tokens(self._text)

    def _decoded(self, source: bytes | str) -> str:
        size = len(source) if isinstance(source, bytes) else len(source.encode(errors="replace"))
        if size > LARGEST:
            raise self._unreadable(f"A plan has {LARGEST // 2**20} MiB at most; this one has {size:,} bytes.")
        try:
            text = source.decode() if isinstance(source, bytes) else source
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode()
            raise self._unreadable("This is not UTF-8 text.", _end_of(before)) from error
        return text.removeprefix("\ufeff")

    def _read(self) -> Any:
        if self._text.lstrip()[:1] in ("{", "["):
            try:
                return self._read_json()
            except json.JSONDecodeError as error:
                if self.file.endswith(".json"):
                    raise self._unreadable(f"This is not JSON: {error.msg}.", (error.lineno, error.colno)) from error
            except (ValueError, RecursionError) as error:
                raise self._unreadable("This JSON holds a number or a nesting that cannot be read.") from error
        return self._read_yaml()

    def _read_json(self) -> Any:
        repeated = False

        def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            nonlocal repeated
            made = dict(pairs)
            repeated = repeated or len(made) < len(pairs)
            return made

        data = json.loads(self._text, object_pairs_hook=mapping)
        self._is_json = True
        if repeated:
            self.noted += [
                self._at(place, f"The field {key!r} is there twice.") for key, place in _repeated(self._text)
            ]
        return data

    def _read_yaml(self) -> Any:
        if control := _CONTROL.search(self._text):
            sentence = f"The character U+{ord(control[0]):04X} is not allowed in YAML."
            raise self._unreadable(sentence, _end_of(self._text[: control.start()]))
        reader = YamlReader(self._text)
        try:
            data = reader.read()
        except Unreadable as error:
            raise PlanInvalid(self._noted([*reader.noted, error])) from error
        self.noted += self._noted(reader.noted)
        return data

    def _noted(self, notes: list[Unreadable]) -> list[Problem]:
        places = sorted(((note.line, note.column), note.sentence) for note in notes)
        return [self._at(place, sentence) for place, sentence in places]

    def _unreadable(self, sentence: str, place: Place = (1, 1)) -> PlanInvalid:
        return PlanInvalid([self._at(place, sentence)])

    def _at(self, place: Place, sentence: str) -> Problem:
        return Problem(self.file, *place, PLAN, sentence)


def _end_of(text: str) -> Place:
    line = text.count("\n") + 1
    return line, len(text) - (text.rfind("\n") + 1) + 1


def _repeated(text: str) -> list[tuple[str, Place]]:
    """The names that are there twice in one object of a JSON text."""
    found: list[tuple[str, Place]] = []
    seen: list[set[str] | None] = []  # for each open object the names so far; None for a list
    at_name: list[bool] = []
    for sign, name, place in json_tokens(text):
        if sign == "}":
            seen.pop()
            at_name.pop()
            continue
        names = seen[-1] if seen else None
        if names is not None:
            if at_name[-1]:
                if name in names:
                    found.append((name, place))
                names.add(name)
            at_name[-1] = not at_name[-1]
        if sign != ".":
            seen.append(set() if sign == "{" else None)
            at_name.append(True)
    return found


def data_problems(file: str, findings: Iterable[Finding]) -> list[Problem]:
    """Findings in a plan that came as data: they have a path and no line."""
    return [Problem(file, None, None, each.code, each.sentence, path_text(each.path)) for each in findings]
