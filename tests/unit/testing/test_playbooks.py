"""Playbooks in the testing kit: scripted tasks, and retries without waiting."""

from __future__ import annotations

import pytest

import runwright as rw
from runwright import testing
from support.playbooks import arcs_to, noop, otherwise, playbook, rules, when

RETRY = rules(when("outcome.status == 'error'", "retry", attempts=3, delay=3600), otherwise("continue"))
DOCUMENT = playbook(
    {
        "step": "collect",
        "loop": {"in": [1, 2, 3], "iterator": "n"},
        "tool": [
            {"fetch": {"kind": "http", "url": "https://api.example.org/{{ iter.n }}", "spec": RETRY}},
            {"use": noop("{{ fetch.data }}")},
        ],
        "next": arcs_to("sum"),
    },
    {"step": "sum", "tool": {"kind": "python", "code": "result = sum(xs)", "args": {"xs": "{{ collect }}"}}},
)


def test_tasks_are_scripted_by_step_iteration_and_attempt() -> None:
    script = {
        "collect/fetch": {"data": 5},
        "collect[1]/fetch": [testing.Fails("HTTP_503"), testing.Fails("HTTP_503"), {"data": 7}],
        "collect/use": lambda result: result,
        "sum/sum": lambda xs: sum(xs),
    }
    with testing.open(script) as app:
        run = app.start(DOCUMENT)
        assert run.wait().status == "COMPLETED"
        assert run.result() == 17
        assert run.took >= 7200
        run.assert_happened("TaskAttemptFailed collect[1]/fetch: HTTP_503", "TaskDone collect[1]/fetch attempt 3")


def test_a_script_for_an_unknown_task_is_refused() -> None:
    with (
        testing.open({"collect/fatch": 1}) as app,
        pytest.raises(rw.RunwrightError, match="of the script not found in the plan"),
    ):
        app.start(DOCUMENT)
