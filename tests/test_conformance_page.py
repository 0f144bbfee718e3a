"""The conformance page is true: every test it names exists, and every rule on it names one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "conformance.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NO_TESTS = "Not the log's"

SECTIONS = [
    *(f"RunEvents v2.0.1 / {name}" for name in (
        "1.1 and 1.2", "1.3", "2.1", "2.2", "2.3", "2.4", "2.5 and 2.5.1", "2.6", "3.1", "3.2", "3.3", "4",
        "5.1 and 5.2", "5.3", "5.4", "Appendix A",
    )),
    *(f"ExecutionSemantics v1.1 / {name}" for name in (
        "1", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "4", "5", "Schema evolution", "Appendix A.1", "Appendix A.2",
    )),
    *(f"RFC-002 Event History Model / {name}" for name in ("Goals", "Design", "Open questions")),
    "Decisions",
]  # fmt: skip
"""What the contracts say of a log, section by section. None may drop out of the page unnoticed."""

DECISIONS = [1, 2, 3, 4, 5, 7, 12, 13, 14, 15, 16, 17, 25, 26, 33, 36, 37, 38, 41]


def sections() -> dict[str, list[str]]:
    """The rows of each section's table, under its headings."""
    found: dict[str, list[str]] = {}
    chapter, title = "", ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            chapter = title = line[3:]
        elif line.startswith("### "):
            title = f"{chapter} / {line[4:]}"
        elif line.startswith("|") and not line.startswith(("| rule |", "| decision |", "|---")):
            found.setdefault(title, []).append(line)
    return found


@cache
def functions_of(path: str) -> frozenset[str]:
    """The tests that a file has, read without running it."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions)]
    assert len(set(names)) == len(names), f"{path} defines a name twice: one of the two never runs"
    return frozenset(name for name in names if name.startswith("test_"))


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 100
    assert [f"{path}::{name}" for path, name in named if name not in functions_of(path)] == []


def test_no_test_is_named_in_a_way_that_could_not_be_checked() -> None:
    rest = NAMED.sub("", PAGE)
    assert re.findall(r"\btest_\w+|\w+\.py\b|::", rest) == []


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_of_the_contracts_is_there_and_names_a_test(name: str) -> None:
    (rows,) = [rows for title, rows in sections().items() if title == name or title.startswith(f"{name} ")]
    assert any(NAMED.search(row) for row in rows)


def test_the_page_has_no_other_sections() -> None:
    assert len(sections()) == len(SECTIONS) + 1
    assert NO_TESTS in sections()


def test_every_rule_on_the_page_names_a_test() -> None:
    for title, rows in sections().items():
        for row in rows:
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            assert len(cells) == (2 if title == NO_TESTS else 3), row
            assert all(cells), row
            assert title == NO_TESTS or re.fullmatch(rf"{NAMED.pattern}(<br>{NAMED.pattern})*", cells[2]), row


def test_the_decisions_that_concern_the_log_are_all_there() -> None:
    numbers = [int(row.split()[1]) for row in sections()["Decisions"]]
    assert numbers == DECISIONS


def test_every_test_that_was_written_for_a_must_is_on_the_page() -> None:
    path = "tests/conformance/test_musts.py"
    assert functions_of(path) == {name for file, name in NAMED.findall(PAGE) if file == path}
