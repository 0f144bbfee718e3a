"""Documentation: Python and commands are executed, outputs are compared, links are checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str, but: Sequence[Path] = ()) -> list[pytest.ParameterSet]:
    found = []
    for page in (page for page in PAGES if page not in but):
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            if match[1] == language:
                found.append(pytest.param(match[2], id=f"{page.name}-{number}"))
    return found


NAMED = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUIDED = [page for page in PAGES if any(match[2] for match in NAMED.finditer(page.read_text()))]
"""Pages whose blocks depend on each other: blocks with a name are files that the commands use."""


def masked(line: str) -> str:
    """Mask the parts of a line that differ between runs: times, durations, hashes and generated keys."""
    line = re.sub(r"\bin [\d.]+ (?:ms|s|min \d+ s)\b", "in <a while>", line)
    line = re.sub(r"20\d\d-\d\d-\d\dT[\d:.]+Z", "<time>", line)
    return re.sub(r"\b[0-9a-f]{16}\b", "<hash>", line).rstrip()


@pytest.mark.parametrize("code", blocks("python"))
def test_the_python_on_the_page_runs(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_of_the_readme_prints_the_shown_output(tmp_path: Path) -> None:
    languages = [(match[1], match[2]) for match in BLOCK.finditer((ROOT / "README.md").read_text())]
    index = next(number for number, (language, _) in enumerate(languages) if language == "python")
    code, expected = languages[index][1], languages[index + 1][1]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == expected


@pytest.mark.parametrize("session", blocks("console", but=GUIDED))
def test_commands_on_the_page_print_the_shown_output(session: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    run_session(session, tmp_path)


def guided_pages() -> list[pytest.ParameterSet]:
    """Return the guided pages; those that run dbt have its marker."""
    return [
        pytest.param(page, marks=pytest.mark.dbt if "\n$ dbt " in page.read_text() else (), id=page.name)
        for page in GUIDED
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", guided_pages())
def test_commands_of_a_guide_print_the_shown_output(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for match in NAMED.finditer(page.read_text()):
        if match[2]:
            (tmp_path / match[2]).write_text(match[3])
        elif match[1] == "console":
            run_session(match[3], tmp_path)


def run_session(session: str, folder: Path) -> None:
    """Run the commands of a session and compare their output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}
    commands: list[tuple[str, list[str]]] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    for command, expected in commands:
        done = subprocess.run(
            command, shell=True, cwd=folder, capture_output=True, text=True, env={**environment, "PATH": path}
        )
        assert done.stderr == ""
        assert [masked(line) for line in done.stdout.splitlines()] == [masked(line) for line in expected], command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_on_the_page_point_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_paths_on_the_architecture_page_exist() -> None:
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(paths) > 50
    assert [path for path in paths if not (ROOT / "src" / "runwright" / path).exists()] == []


def test_the_index_of_the_docs_lists_every_page() -> None:
    docs = ROOT / "docs"
    listed = set(re.findall(r"\]\(([^)#]+)\)", (docs / "README.md").read_text()))
    assert listed == {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"README.md"}


def test_readme_names_make_demo_and_make_test() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("plan", blocks("yaml"))
def test_the_plans_on_the_page_are_valid(plan: str) -> None:
    from runwright.plans.loader import load_plan
    from runwright.tools.registry import builtin_tools

    assert load_plan(plan, tools=builtin_tools()).warnings == ()


@pytest.mark.slow
def test_audit_example_runs_to_its_end(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = subprocess.run([sys.executable, "examples/audit.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DAMAGED  1 run, 22 events checked" in done.stdout
    assert done.stdout.rstrip().endswith("| head -n 3")


@pytest.mark.parametrize("text", blocks("toml"))
def test_settings_on_the_page_are_valid(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    from runwright.config.artifact_store import artifact_store
    from runwright.config.result_stores import result_tiers
    from runwright.control.bootstrap import installed_tools
    from runwright.control.confirmation_policy import read_policy
    from runwright.server.settings import read_server_settings
    from runwright.tools.secrets import create_provider

    monkeypatch.chdir(tmp_path)
    (tmp_path / "runwright.toml").write_text(text)
    settings = tomllib.loads(text)
    assert settings.keys() <= {"artifacts", "http", "policy", "results", "secrets", "server", "store"}
    artifact_store(settings.get("artifacts", {}), tmp_path, lambda: 0)
    result_tiers(settings.get("results", {}), tmp_path, lambda: 0)
    create_provider(settings.get("secrets", {}))
    read_policy(settings.get("policy", {}))
    read_server_settings(settings.get("server", {}))
    installed_tools()
