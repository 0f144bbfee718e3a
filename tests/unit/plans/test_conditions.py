"""Conditions that can never hold are reported when a plan is validated."""

from __future__ import annotations

from typing import Any

import pytest

from runwright.control.plan_loader import read_sent
from runwright.tools.registry import all_tools


def warnings(when: Any, **plan: Any) -> list[str]:
    steps = [{"id": "a", "noop": {}}, {"id": "b", "noop": {}, "dependsOn": ["a"], "when": when}]
    document = {"plan": "p", "params": {"n": 1}, "steps": steps, **plan}
    return [each.sentence for each in read_sent(document, all_tools()).warnings]


NEVER = ["This condition never holds: the step is always skipped."]


@pytest.mark.parametrize(
    "when",
    [
        False,
        "{{ false }}",
        "{{ 1 > 2 }}",
        "{{ steps.a.status == 'FAILED' }}",
        "steps.a.status == 'Success'",
        "{{ steps.a.status == 'SUCCESS' and steps.a.status == 'SKIPPED' }}",
    ],
)
def test_a_condition_that_never_holds_is_a_warning(when: Any) -> None:
    assert warnings(when) == NEVER


@pytest.mark.parametrize(
    "when",
    [
        True,
        "{{ 1 < 2 }}",
        "{{ params.n > 2 }}",
        "{{ steps.a.status == 'SUCCESS' }}",
        "{{ steps.a.status == 'SKIPPED' }}",
        "{{ steps.a.result == 'FAILED' }}",
        "{{ steps.a.status == 'FAILED' or steps.a.result }}",
        "{{ run.id == 'x' }}",
    ],
)
def test_a_condition_that_may_hold_is_accepted(when: Any) -> None:
    assert warnings(when) == []


def test_a_step_may_fail_and_the_run_continue() -> None:
    assert warnings("{{ steps.a.status == 'FAILED' }}", onFailure="continue") == []
