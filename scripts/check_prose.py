"""Check names and prose against the rules of CONTRIBUTING.md: python scripts/check_prose.py [--report] [PATH ...]

Reads comments, docstrings and messages of Python files, comments of SQL files, and Markdown. Prints one line per
finding, and exits with 1 if there is any. Two kinds of text are exempt: Markdown block quotes (lines that begin with
`>`) and lines that contain the marker `prose: quoted`, for sentences whose wording is fixed elsewhere. `--report`
prints counts per 10,000 words instead, with the standard terms of the field for comparison.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SCANNED = ("src", "docs", "tests", "bench", "examples", "scripts", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
EXEMPT = {"scripts/check_prose.py", "tests/unit/test_check_prose.py"}  # they list the idioms
MARKER = "prose: quoted"
MAX_TEST_NAME = 60

# Idiom -> what to write instead.
IDIOMS = {
    r"\b(who|what|which)ever\b": "name the actor or the thing",
    r"\b(some|no|any|every)body\b": "name the actor: caller, process, worker, operator",
    r"\banew\b": "again",
    r"\b(tell|tells|told|say|says|said)\b": "report, state, record, require, specify",
    r"\bgives? back\b": "return",
    r"\b(became|becomes?) of\b|\b(came|come) to\b": "the result, the outcome, the total",
    r"\bfor (good|ever)\b": "permanently, forever",
    r"\b(under way|at work)\b": "running, in progress",
    r"\b(take|taken|takes|took|taking)( \w+)? up\b": "claim, resume, start",
    r"\bhand(s|ed|ing)?( \w+)? (over|out|on|in|back)\b": "pass, return, dispatch, assign",
    r"\b(is|are|was|were) away\b": "unavailable",
    r"\bbeside\b": "next to, in addition to, besides",
    r"\bsee(s|n|ing)? to\b": "handle, process",
    r"\bput(s|ting)? aside\b": "store, store by reference",
    r"\bcircles?\b": "cycle",
    r"\bleft (to|behind|by|for|as|over)\b": "abandoned, released, remaining",
    r"(?:^|\. |: )What (?!.*\?)(?:is|was|a|the|of|only|it|they|has|had|there|becomes|became|steps|people|[a-z]+s )": (
        "begin with the noun that the sentence is about"
    ),
}
STANDARD = (
    r"\bretr(y|ies|ied)\b", r"\bcycles?\b", r"\bleases?\b", r"\bfenc(e|ing)\b", r"\bqueues?\b", r"\bschedul\w+",
    r"\bdispatch\w*", r"\bexecut\w+", r"\btransactions?\b", r"\bemit\w*", r"\bcach\w+", r"\bidempoten\w+",
    r"\breturns?\b", r"\braises?\b", r"\bconcurren\w+", r"\bbatch\w*", r"\bpending\b", r"\bclaim\w*", r"\brecover\w*",
    r"\bcallbacks?\b", r"\bsnapshots?\b", r"\bnotif\w+", r"\bsubscri\w+", r"\bpoll\w*", r"\bbackoff\b",
    r"\btimeouts?\b", r"\bpersist\w*", r"\bresum\w+", r"\babandon\w*", r"\breplay\w*",
)  # fmt: skip
# First words of function names in src that do not name what the function does.
VAGUE_VERBS = {"say", "tell", "take", "give", "keep", "look", "see", "hand", "settle", "carry", "ask", "poke"}
_IDIOMS = [
    (re.compile(pattern, re.NOFLAG if "What" in pattern else re.IGNORECASE), advice)
    for pattern, advice in IDIOMS.items()
]
_STANDARD = [re.compile(pattern, re.IGNORECASE) for pattern in STANDARD]


class Passage(NamedTuple):
    line: int
    text: str


class ProseFinding(NamedTuple):
    path: str
    line: int
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}: {self.advice}"


def python_passages(text: str, *, with_messages: bool) -> Iterator[Passage]:
    """Comments, docstrings and, if wanted, every other string of three words or more."""
    tree = ast.parse(text)
    docstrings = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.add(id(first.value))
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if id(node) in docstrings or (with_messages and len(node.value.split()) >= 3):
            for offset, line in enumerate(node.value.splitlines()):
                yield Passage(node.lineno + offset, line)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(token.start[0], token.string.lstrip("# "))


def test_names(text: str) -> Iterator[Passage]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Passage(node.lineno, node.name.removeprefix("test_").replace("_", " "))


def markdown_passages(text: str) -> Iterator[Passage]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith(">"):
            yield Passage(number, line)


def sql_passages(text: str) -> Iterator[Passage]:
    for number, line in enumerate(text.splitlines(), 1):
        if "--" in line:
            yield Passage(number, line.partition("--")[2])


def passages(path: Path) -> Iterator[Passage]:
    text = path.read_text()
    lines = text.splitlines()
    is_test = "tests" in path.parts
    if path.suffix == ".py":
        found = [*python_passages(text, with_messages=not is_test), *(test_names(text) if is_test else ())]
    elif path.suffix == ".md":
        found = [*markdown_passages(text)]
    else:
        found = [*sql_passages(text)]
    for passage in found:
        if passage.line > len(lines) or MARKER not in lines[passage.line - 1]:
            yield passage


def vague_names(path: Path) -> Iterator[Passage]:
    lines = path.read_text().splitlines()
    for node in ast.walk(ast.parse(path.read_text())):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not is_function or MARKER in lines[node.lineno - 1]:
            continue
        if node.name.strip("_").partition("_")[0] in VAGUE_VERBS:
            yield Passage(node.lineno, node.name)


def files(roots: list[Path]) -> Iterator[Path]:
    for root in roots:
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix in (".py", ".md", ".sql") and path.is_file() and "corpus" not in path.parts:
                yield path


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def check(roots: list[Path]) -> Iterator[ProseFinding]:
    for path in files(roots):
        name = relative(path)
        if name in EXEMPT:
            continue
        for passage in passages(path):
            for pattern, advice in _IDIOMS:
                for match in pattern.finditer(passage.text):
                    yield ProseFinding(name, passage.line, match[0].strip(" .:"), advice)
        if path.suffix == ".py" and "tests" in path.parts:
            for passage in test_names(path.read_text()):
                if len(passage.text) > MAX_TEST_NAME:
                    advice = f"state the behaviour in at most {MAX_TEST_NAME} characters after test_"
                    yield ProseFinding(name, passage.line, passage.text, advice)
        if path.suffix == ".py" and "src" in path.parts:
            for passage in vague_names(path):
                yield ProseFinding(name, passage.line, passage.text, "begin the name with a verb of CONTRIBUTING.md")


def report(roots: list[Path]) -> None:
    print(f"{'':<16}{'words':>9}{'idioms':>9}{'standard':>10}   (per 10,000 words)")
    for root in roots:
        counts = Counter[str]()
        for path in files([root]):
            if relative(path) in EXEMPT:
                continue
            for passage in passages(path):
                counts["words"] += len(passage.text.split())
                counts["idioms"] += sum(len(pattern.findall(passage.text)) for pattern, _ in _IDIOMS)
                counts["standard"] += sum(len(pattern.findall(passage.text)) for pattern in _STANDARD)
        per = max(counts["words"], 1) / 10_000
        print(
            f"{relative(root):<16}{counts['words']:>9,}{counts['idioms'] / per:>9.1f}{counts['standard'] / per:>10.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Check names and prose.")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    roots = [path.resolve() for path in options.paths] or [ROOT / name for name in SCANNED]
    if options.report:
        report(roots)
        return 0
    findings = list(check(roots))
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} findings. See CONTRIBUTING.md, Names and prose.", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
