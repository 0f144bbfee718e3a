"""Read a YAML document to plain data. Anchors and aliases are supported; their expansion is bounded."""

from __future__ import annotations

from typing import Any

import yaml

from runwright.plans.load_limits import check_cancelled

from .scalars import CORE, parse_events, parse_plain, parse_tagged

MAX_DEPTH = 64
"""Maximum number of nested lists and mappings in a plan."""

MAX_ALIAS_WEIGHT = 2**20
"""Maximum number of characters and values that aliases may add: each alias counts as all that its anchor holds."""


class PlanYamlError(Exception):
    """A problem of a YAML document. It is raised if the rest of the document cannot be read."""

    def __init__(self, sentence: str, line: int, column: int) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.line = line
        self.column = column


class YamlReader:
    """Reads one document. Problems that do not prevent reading the rest are collected in `problems`."""

    def __init__(self, text: str) -> None:
        self.problems: list[PlanYamlError] = []
        self._next_event = parse_events(text).__next__
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._weight = 0
        self._alias_weight = 0

    def read(self) -> Any:
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            sentence = f"Invalid YAML: {error.problem or error.context or 'syntax error'}."
            raise PlanYamlError(sentence, *((mark.line + 1, mark.column + 1) if mark else (1, 1))) from error
        except yaml.YAMLError as error:
            raise PlanYamlError("Invalid YAML: it contains a character that YAML does not allow.", 1, 1) from error

    def _document(self) -> Any:
        self._next_event()  # start of the stream
        event = self._next_event()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self._value(self._next_event(), 0)
        self._next_event()  # end of the document
        event = self._next_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise _error_at(event, "A plan must be a single document; a second one begins here.")
        return value

    def _value(self, event: yaml.Event, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._weight
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            self._weight += 1 + len(event.value)
        else:
            if depth >= MAX_DEPTH:
                raise _error_at(event, f"A plan must be nested at most {MAX_DEPTH} levels deep.")
            self._weight += 1
            value = (
                self._mapping(event, depth) if isinstance(event, yaml.MappingStartEvent) else self._list(event, depth)
            )
        if event.anchor is not None:  # pyright: ignore
            self._anchors[event.anchor] = (value, self._weight - before)  # pyright: ignore
        return value

    def _alias(self, event: yaml.AliasEvent) -> Any:
        anchor = self._anchors.get(str(event.anchor))
        if anchor is None:
            raise _error_at(event, f"Unknown anchor &{event.anchor}: an alias must come after the end of its anchor.")
        value, weight = anchor
        self._weight += weight
        self._alias_weight += weight
        if self._alias_weight > MAX_ALIAS_WEIGHT:
            raise _error_at(event, "The aliases of this plan expand to too much data.")
        return value

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        try:
            if event.tag is not None:
                return parse_tagged(event.tag, event.value)
            return parse_plain(event.value) if event.implicit[0] else event.value
        except KeyError:
            self._report(event, f"The tag {event.tag} is not supported: a plan must hold only JSON values.")
        except ValueError:
            self._report(event, "Invalid value: it does not match its tag, or is a number that is too long.")
        return event.value

    def _list(self, event: yaml.Event, depth: int) -> list[Any]:
        self._check_tag(event, "seq")
        items: list[Any] = []
        while not isinstance(event := self._next_event(), yaml.SequenceEndEvent):
            check_cancelled()
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, event: yaml.Event, depth: int) -> dict[str, Any]:
        self._check_tag(event, "map")
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            key = self._key(event, depth)
            value = self._value(self._next_event(), depth + 1)
            if key in mapping:
                self._report(event, f"Duplicate field {key!r}.")
            elif key is not None:
                mapping[key] = value
        return mapping

    def _key(self, event: yaml.Event, depth: int) -> str | None:
        key = self._value(event, depth + 1)
        if isinstance(key, str):
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                self._report(event, "Merge keys (<<) are not part of YAML 1.2; write the fields out.")
                return None
            return key
        sentence = "A field name must be a string; put it in quotes."
        if isinstance(key, dict):  # to YAML, {{ name }} is a mapping within a mapping
            sentence = 'Text that begins with an expression must be in quotes, as in "{{ name }}".'
        self._report(event, sentence)
        return None

    def _report(self, event: yaml.Event, sentence: str) -> None:
        self.problems.append(_error_at(event, sentence))

    def _check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", CORE + kind):
            self._report(event, f"The tag {event.tag} is not supported: a plan must hold only JSON values.")


def _error_at(event: yaml.Event, sentence: str) -> PlanYamlError:
    mark: Any = event.start_mark
    return PlanYamlError(sentence, mark.line + 1, mark.column + 1)
