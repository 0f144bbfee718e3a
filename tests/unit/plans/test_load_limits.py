"""Limits of loading: problems, suggestions, steps, and callers that have gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.control.plan_loader import read_data, read_sent
from runwright.plans import problems
from runwright.plans.load_limits import LoadCancelled, load_limits
from runwright.plans.problems import MAX_PROBLEMS, PlanInvalid, did_you_mean
from runwright.tools.registry import all_tools

BROKEN: dict[str, dict[str, Any]] = {
    "unknown dependencies": {
        "plan": "p",
        "steps": [{"id": f"s{number}", "dependsOn": [f"t{number}"], "noop": {}} for number in range(3000)],
    },
    "unknown fields": {"plan": "p", "steps": [{"id": "a", "noop": {}}], **{f"field{n}": 1 for n in range(3000)}},
    "unknown kinds": {"plan": "p", "steps": [{"id": f"s{number}", "nop": {}} for number in range(3000)]},
    "playbook": {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "p"},
        "workflow": [{"step": f"s{number}", "tol": {}} for number in range(3000)],
    },
}


@pytest.mark.parametrize("document", BROKEN.values(), ids=BROKEN)
def test_a_plan_with_very_many_problems_reports_the_first(document: dict[str, Any]) -> None:
    with pytest.raises(PlanInvalid) as caught:
        read_sent(document, all_tools())
    assert len(caught.value.problems) == MAX_PROBLEMS
    assert f"(at least {MAX_PROBLEMS - 1} more problems in this plan.)" in caught.value.detail


def test_duplicate_fields_in_a_text_are_limited_too() -> None:
    for text in (
        "plan: p\nsteps: []\n" + "x: 1\n" * 500,
        '{"plan": "p", "steps": [],' + '"x": 1,' * 500 + '"y": 1}',
    ):
        with pytest.raises(PlanInvalid) as caught:
            read_sent(text, all_tools())
        assert len(caught.value.problems) == MAX_PROBLEMS


def test_suggestions_compare_a_limited_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def count(_name: str, names: list[str], n: int) -> list[str]:
        compared.append(len(names))
        return []

    monkeypatch.setattr(problems, "get_close_matches", count)
    did_you_mean("x", (f"name{number}" for number in range(10_000)))
    did_you_mean("x" * 1000, ["y"])
    assert compared == [1000]


def test_the_number_of_steps_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = {"plan": "p", "steps": [{"id": f"s{number}", "noop": {}} for number in range(4)]}
    playbook = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "p"},
        "workflow": [{"step": f"s{number}", "tool": {"kind": "noop"}} for number in range(4)],
    }
    read_data(plan)
    (tmp_path / "runwright.toml").write_text("[limits]\nplanSteps = 3\n")
    for document in (plan, playbook):
        with pytest.raises(PlanInvalid, match=r"The plan has 4 steps; at most 3 are allowed \(\[limits\] planSteps\)"):
            read_data(document)


@pytest.mark.parametrize("line", ["planStep = 3", "planSteps = 0", "planSteps = '3'", "planSteps = true"])
def test_invalid_limits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runwright.toml").write_text(f"[limits]\n{line}\n")
    with pytest.raises(rw.RunwrightError, match="planStep") as caught:
        read_data({"plan": "p", "steps": [{"id": "a", "noop": {}}]})
    assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("as_text", [False, True])
def test_a_plan_that_is_not_wanted_any_more_is_not_read_to_its_end(as_text: bool) -> None:
    checks = 0

    def is_cancelled() -> bool:
        nonlocal checks
        checks += 1
        return checks > 3

    steps = "".join(f"- {{id: s{number}, noop: {{}}}}\n" for number in range(1000))
    data = {"plan": "p", "steps": [{"id": f"s{number}", "noop": {}} for number in range(1000)]}
    with load_limits(is_cancelled=is_cancelled), pytest.raises(LoadCancelled):
        read_sent(f"plan: p\nsteps:\n{steps}" if as_text else data, all_tools())
    assert checks == 4
