"""How the end of a step is called where conditions ask for `event.name`: in older playbooks, and of loops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from .problems import Findings, Path

STEP_DONE, LOOP_DONE = "step.done", "loop.done"

_OLD = ("call.done", "step.exit", "call.error")
_TODAY = (STEP_DONE, LOOP_DONE)
_OLD_NAME = re.compile(rf"""(['"])({"|".join(map(re.escape, _OLD))})\1""")
_NAME = re.compile(rf"""(['"])({"|".join(map(re.escape, _TODAY))})\1""")
_EVENT = r"""\(?\s*\bevent(?:\.name|\[['"]name['"]\]|\.get\(['"]name['"]\))\s*\)?(?:\s*\|\s*\w+)*"""
_TEXT = r"""(?:'[^']*'|"[^"]*")"""
_ASKED = re.compile(
    rf"""{_EVENT}\s*(?:[!=]=\s*{_TEXT}|(?:not\s+)?in\s*[\[(][^\])]*)"""
    rf"""|{_TEXT}\s*(?:[!=]=|(?:not\s+)?in\s*[\[(])\s*{_EVENT}"""
)
"""Where the name of an event is compared with texts."""
_MENTIONS_EVENT = re.compile(r"\bevent\b")


def in_todays_words(when: Any, end: str | None, path: Path, findings: Findings) -> Any:
    """The condition with the names of today. `end` is how those whose ends it asks for end well; None if that differs
    from one to another."""
    if not isinstance(when, str):
        return when
    told: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        now = "step.failed" if match[2] == "call.error" else end or STEP_DONE
        if now != match[2]:
            told[match[2]] = now
        return f"{match[1]}{now}{match[1]}"

    changed = when
    if end is not None:
        changed = _ASKED.sub(lambda asked: _NAME.sub(renamed, asked[0]), changed)
    if _MENTIONS_EVENT.search(when):  # names that nothing has today
        changed = _OLD_NAME.sub(renamed, changed)
    for name, now in told.items():
        findings.warning(path, f"`{name}` is read as `{now}`.")
    return changed


def ends_before(workflow: Any) -> dict[str, set[str]]:
    """Of each step, how those end well whose arcs lead to it; as far as the document can be read."""
    found: dict[str, set[str]] = {}
    for step in _mappings(workflow):
        end = LOOP_DONE if step.get("loop") is not None else STEP_DONE
        following: Any = step.get("next")
        arcs: Any = cast("dict[str, Any]", following).get("arcs") if isinstance(following, dict) else following
        names = [arcs] if isinstance(arcs, str) else [arc for arc in _list(arcs) if isinstance(arc, str)]
        for name in (*names, *(arc.get("step") for arc in _mappings(arcs))):
            if isinstance(name, str):
                found.setdefault(name, set()).add(end)
    return found


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    return (cast("dict[str, Any]", item) for item in _list(value) if isinstance(item, dict))


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
