"""Statements of a plan function that would have no effect on its steps are refused."""

from __future__ import annotations

from typing import Any

import pytest

import runwright as rw


@rw.step
def work(n: int = 1) -> int:
    return n


@rw.plan
def sub():
    return work()


def with_try() -> None:
    try:
        work()
    except ValueError:
        work(2)


def with_finally() -> None:
    try:
        print("no step here")
    finally:
        work()


def with_while() -> None:
    n = 0
    while n < 3:
        work.map([1, 2])
        n += 1


def with_sub_plan() -> None:
    try:
        sub()
    except Exception:
        raise


def with_options() -> None:
    try:
        work.options(retries=3)(1)
    except Exception:
        raise


@pytest.mark.parametrize(
    ("function", "keyword"),
    [(with_try, "try"), (with_finally, "try"), (with_while, "while"), (with_sub_plan, "try"), (with_options, "try")],
)
def test_a_statement_around_a_step_that_has_no_effect_is_refused(function: Any, keyword: str) -> None:
    with pytest.raises(rw.RunwrightError, match=f"`{keyword}` around the step") as caught:
        _ = rw.plan(function).traced
    assert caught.value.code == "INVALID_PLAN_SCHEMA"
    line = function.__code__.co_firstlineno + (2 if function is with_while else 1)
    assert f"Line {line}:" in caught.value.detail


def test_other_uses_of_these_statements_are_accepted() -> None:
    @rw.plan
    def careful():
        try:
            n = int("2")
        except ValueError:
            n = 1
        while n < 3:
            n += 1
        for item in range(2):
            work(item + n)

    assert len(careful.traced.document["steps"]) == 2
