"""The conformance pages are complete: every test they name exists, and every rule names a test."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache

import pytest

from support.paths import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@dataclass(frozen=True)
class Page:
    """Required contents of a page: the sections of the contracts and the decisions, so that none is lost."""

    name: str
    sections: list[str]
    decisions: list[int]
    musts: str
    """Tests that were written for this page alone."""
    no_tests: list[str]
    """Sections with rules that we do not claim to meet."""

    @property
    def text(self) -> str:
        return (ROOT / "docs" / self.name).read_text()


def subsections(chapter: str, *names: str) -> list[str]:
    return [f"{chapter} / {name}" for name in names]


LOG = Page(
    "conformance.md",
    [
        *subsections(
            "RunEvents v2.0.1",
            "1.1 and 1.2", "1.3", "2.1", "2.2", "2.3", "2.4", "2.5 and 2.5.1", "2.6", "3.1", "3.2", "3.3", "4",
            "5.1 and 5.2", "5.3", "5.4", "Appendix A",
        ),
        *subsections(
            "ExecutionSemantics v1.1",
            "1", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "4", "5", "Schema evolution", "Appendix A.1", "Appendix A.2",
        ),
        *subsections("RFC-002 Event History Model", "Goals", "Design", "Open questions"),
        "Decisions",
    ],
    [1, 2, 3, 4, 5, 7, 12, 13, 14, 15, 16, 17, 25, 26, 33, 36, 37, 38, 41],
    "tests/conformance/test_contract_requirements.py",
    ["Outside the log"],
)  # fmt: skip

ENGINE = Page(
    "conformance-engine.md",
    [
        *subsections("IWorkflowEngine v1", "1", "2.1", "2.1.1", "2.1.2", "2.1.3", "2.2", "3.1", "3.2", "4"),
        *subsections("RunEvents v2.0.1", "2.4", "2.5 and 2.5.1", "2.6", "5.3"),
        *subsections("ExecutionSemantics v1.1", "1.2", "1.3", "2", "3", "5", "6", "Appendix A"),
        "NoETL Runtime Event Model v10",
        *subsections("Signals", "Decision", "Processing"),
        "Decisions",
    ],
    [3, 6, 8, 9, 10, 11, 12, 17, 18, 19, 20, 22, 24, 27, 32, 35, 39, 40, 43],
    "tests/integration/runtimes/test_engine_requirements.py",
    ["Planned"],
)

NOETL = Page(
    "conformance-noetl.md",
    [
        *subsections(
            "NoETL Runtime Event Model v10",
            "1.1", "1.2", "2", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "4", "5.1", "5.2", "6.1", "7",
        ),
        *subsections("The language", "Acceptance", "Results by reference", "Known failures of similar servers"),
        "Decisions",
    ],
    [28, 29, 30, 31, 32, 42],
    "tests/integration/playbooks/test_noetl_requirements.py",
    ["Planned"],
)  # fmt: skip

PAGES = [LOG, ENGINE, NOETL]
on_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def sections(page: Page) -> dict[str, list[str]]:
    """Return the table rows of each section, by chapter and heading."""
    found: dict[str, list[str]] = {}
    chapter, title = "", ""
    for line in page.text.splitlines():
        if line.startswith("## "):
            chapter = title = line[3:]
        elif line.startswith("### "):
            title = f"{chapter} / {line[4:]}"
        elif line.startswith("|") and not line.startswith(
            ("| rule |", "| decision |", "| case |", "| failure |", "|---")
        ):
            found.setdefault(title, []).append(line)
    return found


@cache
def functions_of(path: str) -> frozenset[str]:
    """Return the names of the tests in a file, without running it."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions)]
    assert len(set(names)) == len(names), f"{path} defines a name twice: one of the two never runs"
    return frozenset(name for name in names if name.startswith("test_"))


@on_each_page
def test_every_test_named_on_the_page_exists(page: Page) -> None:
    named = NAMED.findall(page.text)
    assert len(named) > 50
    assert [f"{path}::{name}" for path, name in named if name not in functions_of(path)] == []


@on_each_page
def test_every_test_reference_has_the_checked_format(page: Page) -> None:
    rest = NAMED.sub("", page.text)
    assert re.findall(r"\btest_\w+|\w+\.py\b|::", rest) == []


@pytest.mark.parametrize(
    ("page", "name"),
    [pytest.param(page, name, id=f"{page.name}: {name}") for page in PAGES for name in page.sections],
)
def test_every_section_of_the_contracts_names_a_test(page: Page, name: str) -> None:
    (rows,) = [rows for title, rows in sections(page).items() if title == name or title.startswith(f"{name} ")]
    assert any(NAMED.search(row) for row in rows)


@on_each_page
def test_the_page_has_no_other_sections(page: Page) -> None:
    assert len(sections(page)) == len(page.sections) + len(page.no_tests)
    assert set(page.no_tests) <= sections(page).keys()


@on_each_page
def test_every_rule_on_the_page_names_a_test(page: Page) -> None:
    for title, rows in sections(page).items():
        claims = title not in page.no_tests
        for row in rows:
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            assert len(cells) == (3 if claims else 2), row
            assert all(cells), row
            assert not claims or re.fullmatch(rf"{NAMED.pattern}(<br>{NAMED.pattern})*", cells[2]), row


@on_each_page
def test_the_page_lists_the_decisions_that_concern_it(page: Page) -> None:
    numbers = [int(row.split()[1]) for row in sections(page)["Decisions"]]
    assert numbers == page.decisions


@on_each_page
def test_every_requirement_test_is_on_the_page(page: Page) -> None:
    assert functions_of(page.musts) == {name for file, name in NAMED.findall(page.text) if file == page.musts}


@on_each_page
def test_the_pages_link_to_each_other(page: Page) -> None:
    assert all(f"]({other.name}" in page.text for other in PAGES if other is not page)
