"""The structure of the code: no import cycles, one meaning per class name."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.paths import ROOT

SOURCE = ROOT / "src"


def modules(source: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in source.rglob("*.py"):
        parts = file.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(module: str, file: Path, known: dict[str, Path]) -> set[str]:
    """Find the modules that a module imports anywhere, also in functions and under TYPE_CHECKING."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            target = ".".join(filter(None, (base, node.module or "")))
            for alias in node.names:
                child = f"{target}.{alias.name}"
                found.add(child if child in known else target)
    return (found & known.keys()) - {module}


def import_cycle(source: Path) -> list[str] | None:
    known = modules(source)
    try:
        TopologicalSorter({module: imports(module, file, known) for module, file in known.items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_source_has_no_import_cycle_even_for_type_checking() -> None:
    assert import_cycle(SOURCE) is None


@pytest.mark.parametrize(
    "second", ["from .a import x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a"]
)
def test_an_import_cycle_is_found(tmp_path: Path, second: str) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from p import b\nx = 1\n")
    (package / "b.py").write_text(f"{second}\n")
    assert import_cycle(tmp_path) is not None


def duplicated_classes(*roots: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for root in roots:
        for file in sorted(root.rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name.lstrip("_")].append(str(file.relative_to(root)))
    return {name: files for name, files in found.items() if len(files) > 1}


def test_class_names_are_unique_in_the_repository() -> None:
    assert duplicated_classes(SOURCE, ROOT / "bench", ROOT / "scripts") == {}


def test_a_duplicated_class_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Lease: ...\n")
    (tmp_path / "b.py").write_text("class _Lease: ...\n")
    assert duplicated_classes(tmp_path) == {"Lease": ["a.py", "b.py"]}
