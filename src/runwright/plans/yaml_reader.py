"""A YAML document as plain data. Anchors may be used; what they could grow to is bounded."""

from __future__ import annotations

from typing import Any

import yaml

from .yaml_core import CORE, events, plain, tagged

DEEPEST = 64
"""Levels of lists and mappings in a plan."""

LARGEST = 2**20
"""Characters and values that aliases may add to what is written: each counts as all that it stands for."""


class Unreadable(Exception):
    """The document cannot be read on from here."""

    def __init__(self, sentence: str, line: int, column: int) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.line = line
        self.column = column


class YamlReader:
    """Reads one document. What is wrong but can be passed over is noted, with its place."""

    def __init__(self, text: str) -> None:
        self.noted: list[Unreadable] = []
        self._next = events(text).__next__
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._weight = 0
        self._added = 0

    def read(self) -> Any:
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            sentence = f"This is not YAML: {error.problem or error.context or 'it cannot be read'}."
            raise Unreadable(sentence, *((mark.line + 1, mark.column + 1) if mark else (1, 1))) from error
        except yaml.YAMLError as error:
            raise Unreadable("This is not YAML: it holds a character that YAML does not allow.", 1, 1) from error

    def _document(self) -> Any:
        self._next()  # the stream's start
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), 0)
        self._next()  # the document's end
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise _at(event, "A plan is one document; here a second one begins.")
        return value

    def _value(self, event: yaml.Event, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._weight
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            self._weight += 1 + len(event.value)
        else:
            if depth >= DEEPEST:
                raise _at(event, f"A plan is nested {DEEPEST} levels deep at most.")
            self._weight += 1
            value = (
                self._mapping(event, depth) if isinstance(event, yaml.MappingStartEvent) else self._list(event, depth)
            )
        if event.anchor is not None:  # pyright: ignore
            self._anchors[event.anchor] = (value, self._weight - before)  # pyright: ignore
        return value

    def _alias(self, event: yaml.AliasEvent) -> Any:
        anchored = self._anchors.get(str(event.anchor))
        if anchored is None:
            raise _at(event, f"There is no finished anchor &{event.anchor} before this alias.")
        value, weight = anchored
        self._weight += weight
        self._added += weight
        if self._added > LARGEST:
            raise _at(event, "The aliases of this plan stand for too much: written out it would be enormous.")
        return value

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        try:
            if event.tag is not None:
                return tagged(event.tag, event.value)
            return plain(event.value) if event.implicit[0] else event.value
        except KeyError:
            self.noted.append(_at(event, f"The tag {event.tag} is not supported; a plan holds what JSON can hold."))
        except ValueError:
            self.noted.append(_at(event, "This value does not fit its tag, or is a number that cannot be read."))
        return event.value

    def _list(self, event: yaml.Event, depth: int) -> list[Any]:
        self._check_tag(event, "seq")
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, event: yaml.Event, depth: int) -> dict[str, Any]:
        self._check_tag(event, "map")
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, depth)
            value = self._value(self._next(), depth + 1)
            if key in mapping:
                self.noted.append(_at(event, f"The field {key!r} is there twice."))
            elif key is not None:
                mapping[key] = value
        return mapping

    def _key(self, event: yaml.Event, depth: int) -> str | None:
        key = self._value(event, depth + 1)
        if isinstance(key, str):
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                self.noted.append(_at(event, "Merge keys (<<) are not part of YAML 1.2; write the fields out."))
                return None
            return key
        sentence = "The name of a field is text; put it in quotes."
        if isinstance(key, dict):  # {{ name }} is a mapping in a mapping to YAML
            sentence = 'A text that begins with an expression is put in quotes, as in "{{ name }}".'
        self.noted.append(_at(event, sentence))
        return None

    def _check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", CORE + kind):
            self.noted.append(_at(event, f"The tag {event.tag} is not supported; a plan holds what JSON can hold."))


def _at(event: yaml.Event, sentence: str) -> Unreadable:
    mark: Any = event.start_mark
    return Unreadable(sentence, mark.line + 1, mark.column + 1)
