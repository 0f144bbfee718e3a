"""The decider without store, clock or processes: decisions from a plan and the events so far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.contract import payloads
from runwright.contract.plan import (
    Backoff,
    Foreach,
    OnFailure,
    Order,
    Retry,
    Step,
    StepClass,
)
from runwright.contract.refs import ErrorInfo
from runwright.contract.timestamps import to_micros
from runwright.core.scheduling.context import Capacity, Violation
from support.decider import BEGIN, BROKEN, DeciderHarness, describe, graph, step


def test_each_step_starts_as_soon_as_its_dependencies_end() -> None:
    harness = graph(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"))
    assert harness.decide() == ["RunQueued", "RunStarted", "StepStarted a"]
    assert harness.end("a") == ["StepStarted b", "StepStarted c"]
    assert harness.end("c") == []
    assert harness.end("b") == ["StepStarted d"]
    assert harness.end("d") == ["RunCompleted"]


def test_nothing_is_decided_twice() -> None:
    harness = graph(step("a"), step("b"))
    harness.decide()
    assert harness.decide() == []
    harness.restore()
    assert harness.decide() == []


def test_a_sequential_plan_starts_one_step_at_a_time() -> None:
    harness = DeciderHarness(step("a"), step("b"), step("c"))
    assert harness.decide()[2:] == ["StepStarted a"]
    assert harness.end("a") == ["StepStarted b"]
    assert harness.end("b") == ["StepStarted c"]


@pytest.mark.parametrize("recovered", [False, True])
def test_an_early_skip_does_not_break_sequential_order(recovered: bool) -> None:
    harness = DeciderHarness(step("a"), step("b"), step("c"), step("d"))
    harness.decide()
    assert harness.signal("SKIP_STEP", stepId="b") == ["StepSkipped b OPERATOR_SKIP", "SignalProcessed"]
    assert harness.signal("SKIP_STEP", 2, stepId="c") == ["StepSkipped c OPERATOR_SKIP", "SignalProcessed"]
    if recovered:
        harness.restore()
    assert harness.end("a") == ["StepStarted d"]
    assert harness.end("d") == ["RunCompleted"]


@pytest.mark.parametrize("recovered", [False, True])
def test_an_early_skip_of_a_dependent_step_starts_the_next(recovered: bool) -> None:
    harness = DeciderHarness(step("a"), step("b", "a"), step("c"), order=Order.SEQUENTIAL)
    harness.decide()
    assert harness.signal("SKIP_STEP", stepId="b") == ["StepSkipped b OPERATOR_SKIP", "SignalProcessed"]
    if recovered:
        harness.restore()
    assert harness.end("a") == ["StepStarted c"]


@pytest.mark.parametrize("recovered", [False, True])
def test_dependents_of_a_skipped_step_start_immediately(recovered: bool) -> None:
    """Decisions 11 and 24: the dependencies of the skipped step have ended, and an operator's skip does not propagate."""
    harness = graph(step("a"), step("b", "a"), step("c", "b"), on_failure=OnFailure.WAIT)
    harness.decide()
    harness.end("a", error=ErrorInfo("BROKEN", "", retryable=False))
    if recovered:
        harness.restore()
    assert harness.signal("SKIP_STEP", stepId="b") == [
        "StepSkipped b OPERATOR_SKIP",
        "SignalProcessed",
        "StepStarted c",
    ]


def test_steps_start_in_order_within_the_capacity() -> None:
    harness = graph(*(step(name) for name in "dcba"), capacity=2)
    assert harness.decide()[2:] == ["StepStarted d", "StepStarted c"]
    harness.capacity = 1
    assert harness.end("c") == ["StepStarted b"]
    harness.capacity = 0
    assert harness.end("b") == []
    assert harness.end("d") == []
    harness.capacity = 1
    assert harness.decide() == ["StepStarted a"]


def test_a_step_class_without_capacity_blocks_no_other_class() -> None:
    harness = graph(step("heavy", step_class=StepClass.HEAVY), step("light"))
    harness.decider.set_time(harness.now)
    harness.decider.decide(Capacity({StepClass.LIGHT: 1}))
    assert [describe(draft) for draft in harness.decider.drain_drafts()[0]][2:] == ["StepStarted light"]


def test_a_retry_without_capacity_blocks_no_other_class() -> None:
    policy = Retry(max_attempts=2, initial=0.0)
    harness = graph(step("heavy", step_class=StepClass.HEAVY, retry=policy), step("light", retry=policy))
    harness.decide()
    harness.capacity = 0
    harness.end("heavy", error=BROKEN)
    harness.end("light", error=BROKEN)
    harness.decider.set_time(harness.now + 1)
    harness.decider.decide(Capacity({StepClass.LIGHT: 1}))
    assert [describe(draft) for draft in harness.decider.drain_drafts()[0]] == ["StepStarted light #2"]


# Failures


def test_a_failed_run_ends_after_its_running_steps() -> None:
    harness = graph(step("a"), step("b"), step("c", "a"), step("d", "b"))
    harness.decide()
    assert harness.end("a", error=ErrorInfo("BROKEN", "", retryable=False)) == []
    assert harness.end("b") == ["StepSkipped c DEPENDENCY_FAILED", "StepSkipped d RUN_FAILED", "RunFailed"]


def test_a_permanent_failure_does_not_wait_for_other_retries() -> None:
    harness = graph(step("a", retry=Retry(max_attempts=2, initial=60.0)), step("b"))
    harness.decide()
    assert harness.end("a", error=BROKEN) == ["StepRetryScheduled a"]
    assert harness.end("b", error=BROKEN) == ["RunFailed"]


def test_continue_waits_for_the_retries_of_others() -> None:
    harness = graph(step("a", retry=Retry(max_attempts=2, initial=60.0)), step("b"), on_failure=OnFailure.CONTINUE)
    harness.decide()
    harness.end("a", error=BROKEN)
    assert harness.end("b", error=BROKEN) == []
    harness.now += 61_000_000
    assert harness.decide() == ["StepStarted a #2"]
    assert harness.end("a", attempt=2) == ["RunFailed"]


@pytest.mark.parametrize("recovered", [False, True])
def test_continue_runs_the_steps_independent_of_a_failure(recovered: bool) -> None:
    """Also in a sequential plan: steps that do not depend on the failed step run, in order."""
    steps = step("a"), step("b", "a"), step("c"), step("d", "b"), step("e")
    harness = DeciderHarness(*steps, order=Order.SEQUENTIAL, on_failure=OnFailure.CONTINUE)
    harness.decide()
    assert harness.end("a", error=ErrorInfo("BROKEN", "", retryable=False)) == ["StepStarted c"]
    if recovered:
        harness.restore()
    assert harness.end("c") == ["StepStarted e"]
    assert harness.end("e") == ["StepSkipped b DEPENDENCY_FAILED", "StepSkipped d DEPENDENCY_FAILED", "RunFailed"]


@pytest.mark.parametrize("recovered", [False, True])
def test_a_failed_forced_retry_fails_the_run(recovered: bool) -> None:
    harness = graph(step("a"), step("b"))
    harness.decide()
    harness.end("a")
    harness.signal("RETRY_STEP", stepId="a", force=True)
    if recovered:
        harness.restore()
    harness.end("a", error=BROKEN, attempt=2)
    harness.end("b")
    assert harness.status == "FAILED"


def test_a_forced_retry_names_its_signal() -> None:
    harness = graph(step("a"), step("b"))
    harness.decide()
    harness.end("a")
    assert harness.signal("RETRY_STEP", stepId="a", force=True) == [
        "StepRetryScheduled a",
        "SignalProcessed",
        "StepStarted a #2",
    ]
    started = harness.drafts[-1]
    assert b'"forcedBy":"00000000-0000-4000-8000-000000000001"' in started.raw_payload


# Retries


def delays(policy: Retry, run_id: str = "run-1") -> list[float]:
    harness = graph(step("a", retry=policy), run_id=run_id)
    harness.decide()
    found: list[float] = []
    for attempt in range(1, policy.max_attempts):
        harness.end("a", error=BROKEN, attempt=attempt)
        due = harness.decider.execution.retry_at["a"]
        found.append((due - harness.now) / 1e6)
        assert harness.decider.scheduler.next_due() in (due, None)
        harness.now = due
        assert harness.decide() == [f"StepStarted a #{attempt + 1}"]
    assert harness.end("a", error=BROKEN, attempt=policy.max_attempts) == ["RunFailed"]
    return found


def test_exponential_backoff_doubles_up_to_its_limit() -> None:
    policy = Retry(max_attempts=7, initial=0.5, longest=5.0, jitter=False)
    assert delays(policy) == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_fixed_backoff_stays_the_same() -> None:
    assert delays(Retry(max_attempts=4, backoff=Backoff.FIXED, initial=3.0, jitter=False)) == [3.0, 3.0, 3.0]


@given(st.text(st.characters(exclude_characters="|", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30))
def test_jitter_is_at_most_half_and_deterministic_per_run(run_id: str) -> None:
    policy = Retry(max_attempts=4, initial=2.0, longest=60.0)
    found = delays(policy, run_id)
    for jittered, full in zip(found, [2.0, 4.0, 8.0], strict=True):
        assert full / 2 <= jittered <= full
    assert found == delays(policy, run_id)


def test_jitter_differs_between_runs() -> None:
    assert len({delays(Retry(max_attempts=2, initial=2.0), f"run-{n}")[0] for n in range(20)}) > 15


def test_an_error_that_is_not_retryable_is_not_retried() -> None:
    harness = graph(step("a", retry=Retry(max_attempts=5)))
    harness.decide()
    assert harness.end("a", error=ErrorInfo("GONE", "", retryable=False)) == ["RunFailed"]


def test_a_hundred_attempts_do_not_overflow_the_backoff() -> None:
    assert max(delays(Retry(max_attempts=100, initial=1.0, longest=60.0, jitter=False))) == 60.0


def test_a_retry_brought_forward_stays_so_after_recovery() -> None:
    harness = graph(step("a", retry=Retry(max_attempts=2, initial=60.0)))
    harness.decide()
    harness.end("a", error=BROKEN)
    harness.accept("PAUSE")
    harness.accept("RETRY_STEP", 2, stepId="a")
    harness.decide()
    harness.restore()
    harness.now += 1000
    assert "StepStarted a #2" in harness.signal("RESUME", 3)


# Pauses, timeouts, ends


def test_an_accepted_pause_applies_before_the_next_start() -> None:
    """A pause accepted during a completion is not lost, and the completion is not refused."""
    harness = DeciderHarness(step("a"), step("b"))
    harness.decide()
    harness.accept("PAUSE")
    assert harness.end("a")[1:] == ["RunPaused", "SignalProcessed"]
    assert harness.status == "PAUSED"
    assert harness.signal("RESUME", 2) == ["RunResumed", "SignalProcessed", "StepStarted b"]


def test_a_paused_run_does_not_complete() -> None:
    harness = DeciderHarness(step("a"))
    harness.decide()
    harness.signal("PAUSE")
    assert harness.end("a") == []
    assert harness.signal("RESUME", 2) == ["RunResumed", "SignalProcessed", "RunCompleted"]


def test_the_second_pause_and_its_resume_have_the_ordinal_two() -> None:
    harness = DeciderHarness(step("a"))
    harness.decide()
    lines = [
        entry
        for n, kind in enumerate(("PAUSE", "RESUME", "PAUSE", "PAUSE", "RESUME", "RESUME"), 1)
        for entry in harness.signal(kind, n)
    ]
    assert lines == [
        "RunPaused",
        "SignalProcessed",
        "RunResumed",
        "SignalProcessed",
        "RunPaused #2",
        "SignalProcessed",
        "SignalProcessed ALREADY_PAUSED",
        "RunResumed #2",
        "SignalProcessed",
        "SignalProcessed NOT_PAUSED",
    ]


def test_a_timed_out_run_stops_its_steps_and_then_fails() -> None:
    harness = graph(step("a"), step("b", "a"), timeout=10.0)
    harness.decide()
    harness.now += 10_000_000
    assert harness.decide() == []
    assert harness.decider.stop is not None
    assert harness.decider.stop.code == "TIMEOUT"
    assert harness.decide(stopped=True) == ["StepSkipped b RUN_FAILED", "StepFailed a TIMEOUT", "RunFailed RUN_TIMEOUT"]


def test_a_paused_run_that_times_out_fails() -> None:
    harness = graph(step("a"), timeout=10.0)
    harness.decide()
    harness.signal("PAUSE")
    harness.now += 11_000_000
    harness.decide()
    assert harness.decide(stopped=True)[-1] == "RunFailed RUN_TIMEOUT"


def test_signals_after_a_cancel_are_processed_as_run_terminal() -> None:
    harness = graph(step("a"), step("b", "a"))
    harness.decide()
    harness.accept("CANCEL", 1)
    harness.accept("PAUSE", 2)
    harness.accept("SKIP_STEP", 3, stepId="b")
    lines = harness.decide(stopped=True)
    assert lines[3:] == [
        "StepSkipped b RUN_CANCELLED",
        "StepFailed a CANCELLED",
        "RunCancelled",
        "SignalProcessed CANCELLED",
        "SignalProcessed RUN_TERMINAL",
        "SignalProcessed RUN_TERMINAL",
    ]


def test_an_emergency_stop_precedes_pending_signals() -> None:
    harness = graph(step("a"))
    harness.decide()
    harness.accept("PAUSE", 1)
    harness.accept("EMERGENCY_STOP", 2, reason="fire")
    harness.decide()
    assert harness.decider.stop is not None
    assert harness.decider.stop.by_force
    assert harness.decide(stopped=True)[0] == "StepFailed a KILLED"
    assert harness.status == "CANCELLED"


# Loops


def test_a_loop_limits_iterations_and_collects_in_order() -> None:
    harness = graph(Step(step_id="a", kind="noop", foreach=Foreach(["x", "y", "z"], "item", 2)))
    assert harness.decide()[2:] == [
        "StepStarted a",
        "LoopStarted a",
        "LoopIterationStarted a[0]",
        "LoopIterationStarted a[1]",
    ]
    harness.decider.emit("LoopIterationDone", "a[1]", 1, {"index": 1, "result": "second"})
    assert harness.decide()[1:] == ["LoopIterationStarted a[2]"]
    harness.decider.emit("LoopIterationDone", "a[2]", 1, {"index": 2, "result": "third"})
    harness.decider.emit("LoopIterationDone", "a[0]", 1, {"index": 0, "result": "first"})
    assert harness.decide()[2:] == ["LoopDone a", "StepCompleted a", "RunCompleted"]
    assert b'"result":["first","second","third"]' in harness.drafts[-2].raw_payload


def test_an_iteration_that_fails_during_a_pause_is_retried() -> None:
    foreach = Foreach([1], "item", 2)
    harness = graph(Step(step_id="a", kind="noop", foreach=foreach, retry=Retry(max_attempts=2, initial=0.0)))
    harness.decide()
    harness.signal("PAUSE")
    harness.decider.emit("LoopIterationFailed", "a[0]", 1, payloads.LoopIteration(0, error=BROKEN))
    harness.decide()
    harness.restore()
    harness.now += 1000
    assert "LoopIterationStarted a[0] #2" in harness.signal("RESUME", 2)


def test_a_paused_loop_without_running_iterations_is_drained() -> None:
    """No iteration is running and none may start, so there is nothing to drain."""
    harness = graph(Step(step_id="a", kind="noop", foreach=Foreach([1, 2, 3], "item", 1)))
    harness.decide()
    harness.signal("PAUSE")
    harness.decider.emit("LoopIterationDone", "a[0]", 1, {"index": 0})
    harness.decide()
    harness.now += 301_000_000
    assert harness.decide() == []


# The guard against invalid transitions


def test_an_invalid_step_event_is_a_violation_without_effect() -> None:
    harness = graph(step("a"), step("b"))
    harness.decide()
    harness.end("a")
    before = harness.decider.state.summary.completed_steps
    harness.decider.emit("StepFailed", "a", 1, payloads.StepFailed(BROKEN))
    (violation,) = harness.decider.violations
    assert violation.entity == "a"
    assert violation.facts == {
        "invalidTransitionDetected": True,
        "expectedState": "RUNNING",
        "actualState": "SUCCESS",
        "attemptedEventType": "StepFailed",
    }
    assert harness.decider.drain_drafts()[0] == []
    assert harness.decider.state.summary.completed_steps == before
    assert harness.end("b") == ["RunCompleted"]


def test_an_invalid_run_event_raises_a_violation() -> None:
    harness = graph(step("a"))
    harness.decide()
    with pytest.raises(Violation) as caught:
        harness.decider.emit("RunResumed")
    assert caught.value.entity == "RUN"


def test_drafts_have_the_time_given_to_the_decider() -> None:
    harness = graph(step("a"))
    harness.decide()
    assert {to_micros(draft.emitted_at) for draft in harness.drafts} == {BEGIN}


def test_dependents_wait_for_a_forced_retry() -> None:
    """The original decider must not start a step that a recovered decider would not start."""
    harness = graph(step("a"), step("other"), step("b", "a", "other"))
    harness.decide()
    harness.end("a")
    assert "StepStarted a #2" in harness.signal("RETRY_STEP", stepId="a", force=True)
    assert harness.end("other") == []
    assert harness.end("a", attempt=2) == ["StepStarted b"]


def test_a_sequential_plan_waits_for_a_retried_earlier_step() -> None:
    harness = DeciderHarness(step("a"), step("b"), step("c"), order=Order.SEQUENTIAL, on_failure=OnFailure.CONTINUE)
    harness.decide()
    assert harness.end("a", error=ErrorInfo("BROKEN", "", retryable=False)) == ["StepStarted b"]
    assert "StepStarted a #2" in harness.signal("RETRY_STEP", stepId="a")
    assert harness.end("b") == []
    assert harness.end("a", attempt=2) == ["StepStarted c"]


# Random plans, ended in any order, recovered at any time


@given(st.data())
def test_a_recovered_run_makes_the_same_decisions(data: st.DataObject) -> None:
    """The events are the same if the log is refolded before each decision and if it never is."""
    names = [f"s{n}" for n in range(data.draw(st.integers(1, 6)))]
    order = data.draw(st.sampled_from(Order))
    steps = [
        step(
            name,
            *data.draw(st.lists(st.sampled_from(names[:n]), max_size=2, unique=True) if n else st.just([])),
            when=data.draw(st.sampled_from([None, None, True, False])),
            retry=Retry(max_attempts=data.draw(st.integers(1, 2)), initial=0.0),
        )
        for n, name in enumerate(names)
    ]
    on_failure = data.draw(st.sampled_from(OnFailure))
    one, other = (DeciderHarness(*steps, order=order, on_failure=on_failure) for _ in range(2))
    assert one.decide() == other.decide()
    for number in range(12):
        running = [name for name, cell in one.decider.state.steps.items() if cell.status == "RUNNING"]
        other.restore()
        one.now = other.now = one.now + 1000
        act = data.draw(st.sampled_from(["end", "end", "fail", "skip", "retry", "nothing"]))
        if act in ("end", "fail") and running:
            name = data.draw(st.sampled_from(running))
            attempt = one.decider.state.steps[name].attempt
            error = BROKEN if act == "fail" else None
            assert one.end(name, error=error, attempt=attempt) == other.end(name, error=error, attempt=attempt)
        elif act in ("skip", "retry") and one.status == "RUNNING":
            kind, more = ("SKIP_STEP", {}) if act == "skip" else ("RETRY_STEP", {"force": True})
            name = data.draw(st.sampled_from(names))
            done = [harness.signal(kind, number + 1, stepId=name, **more) for harness in (one, other)]
            assert done[0] == done[1]
        else:
            assert one.decide() == other.decide()


def test_a_recovered_run_reports_the_same_root_cause() -> None:
    """The first failure is the root cause, also for a process that recovers the run after both failures."""
    harness = graph(step("a"), step("b"), step("c"), on_failure=OnFailure.CONTINUE)
    harness.decide()
    harness.end("b", error=BROKEN)
    harness.now += 1000
    harness.end("a", error=BROKEN)
    harness.restore()
    harness.end("c")
    failed = next(draft for draft in harness.drafts if draft.event_type == "RunFailed")
    assert b'"rootCause":{"stepId":"b"' in failed.raw_payload


@pytest.mark.parametrize("kind", ["PAUSE", "CANCEL", "EMERGENCY_STOP"])
def test_workers_cannot_claim_steps_after_a_stopping_signal(kind: str) -> None:
    """The signal is in the log, but the engine has not processed it yet."""
    harness = graph(step("a"), step("b"), queue="q")
    assert harness.decide()[2:] == ["StepScheduled a", "StepScheduled b"]
    assert harness.decider.claim("a", 1, "w")
    harness.accept(kind)
    assert not harness.decider.claim("b", 1, "w")
    harness.accept("EVENT", 2, name="n")
    assert "StepStarted b" not in harness.decide()
