"""`decide` by itself: no store, no clock, no process. What follows from a plan and what has happened so far."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.contract import payloads
from runwright.contract.plan import (
    Backoff,
    ExecutionPlan,
    Foreach,
    OnFailure,
    Order,
    PlanMetadata,
    Retry,
    Step,
    StepClass,
)
from runwright.contract.refs import ErrorInfo
from runwright.contract.timestamps import to_micros
from runwright.core.decider import Decider
from runwright.core.fold.evolve import transition
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.state import RunState
from runwright.core.graph.plan_graph import PlanGraph
from runwright.core.scheduling.capacity import Capacity
from runwright.core.scheduling.drafts import Violation

BEGIN = 1_780_000_000_000_000
BROKEN = ErrorInfo("BROKEN", "it broke", retryable=True)


class Play:
    """A run that is decided upon, with its steps ended by hand."""

    def __init__(
        self, *steps: Step, room: int = 100, queue: str | None = None, run_id: str = "run-1", **plan: Any
    ) -> None:
        plan = {"order": Order.SEQUENTIAL, **plan}
        self.plan = ExecutionPlan(metadata=PlanMetadata(plan_id="p"), steps=steps, **plan)
        self.net = PlanGraph(self.plan, lambda _step: queue)
        self.run = rw.new_run(run_id, "p", "1")
        self.now = BEGIN
        self.room = room
        self.drafts: list[Any] = []
        self.decider = self._decider()
        self.decider.set_time(self.now)
        self.decider.emit("RunQueued", payload=payloads.RunQueued(params=dict(self.plan.params)))
        self.decider.emit("RunStarted", payload=payloads.RunStarted(started_at=None))

    def _decider(self) -> Decider:
        return Decider(self.net, RunState(detailed=True, execution=ExecutionState(mentioned_steps=None)), self.run)

    def decide(self, *, stopped: bool = False) -> list[str]:
        self.decider.set_time(self.now)
        self.decider.decide(Capacity(dict.fromkeys(StepClass, self.room)), stopped=stopped)
        drafts, _ = self.decider.drain_drafts()
        self.drafts += drafts
        return [told(made) for made in drafts]

    def end(self, step: str, *, error: ErrorInfo | None = None, attempt: int = 1) -> list[str]:
        self.decider.set_time(self.now)
        if error is None:
            self.decider.emit("StepCompleted", step, attempt, payloads.StepCompleted(1))
        else:
            self.decider.emit("StepFailed", step, attempt, payloads.StepFailed(error))
        return self.decide()[1:]

    def signal(self, kind: str, number: int = 1, **payload: Any) -> list[str]:
        self.accept(kind, number, **payload)
        return [entry for entry in self.decide() if not entry.startswith("SignalAccepted")]

    def accept(self, kind: str, number: int = 1, **payload: Any) -> None:
        signal_id = f"00000000-0000-4000-8000-{number:012}"
        decided = payloads.SignalDecided(signal_id=signal_id, signal_type=kind, payload=payload)
        self.decider.set_time(self.now)
        self.decider.emit("SignalAccepted", f"signal/{signal_id}", 1, decided)

    def restore(self) -> None:
        """Another process takes over: fold what was drafted."""
        self.decider.drain_drafts()
        self.decider = self._decider()
        for made in self.drafts:
            assert transition(self.decider.state, made) is None
        again = Decider(self.net, self.decider.state, self.run)
        self.decider = again

    @property
    def status(self) -> str:
        return str(self.decider.status)


def told(made: Any) -> str:
    payload = made.raw_payload or b""
    code = next((word for word in CODES if f'"{word}"'.encode() in payload), "")
    attempt = "" if made.logical_attempt_id == 1 else f"#{made.logical_attempt_id}"
    path = "" if (made.step_id or "").startswith("signal/") else made.step_id
    return " ".join(filter(None, (made.event_type, path, attempt, code)))


CODES = (
    "CONDITION_FALSE",
    "DEPENDENCY_SKIPPED",
    "DEPENDENCY_FAILED",
    "RUN_FAILED",
    "RUN_CANCELLED",
    "OPERATOR_SKIP",
    "RUN_TIMEOUT",
    "TIMEOUT",
    "CANCELLED",
    "KILLED",
    "RUN_TERMINAL",
    "ALREADY_PAUSED",
    "NOT_PAUSED",
    "STEP_TERMINAL",
)


def step(step_id: str, *needs: str, **more: Any) -> Step:
    return Step(step_id=step_id, kind="noop", depends_on=needs, **more)


def graph(*steps: Step, **more: Any) -> Play:
    return Play(*steps, order=Order.GRAPH, **more)


def test_a_diamond_starts_each_step_as_soon_as_its_own_inputs_have_ended() -> None:
    play = graph(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"))
    assert play.decide() == ["RunQueued", "RunStarted", "StepStarted a"]
    assert play.end("a") == ["StepStarted b", "StepStarted c"]
    assert play.end("c") == []
    assert play.end("b") == ["StepStarted d"]
    assert play.end("d") == ["RunCompleted"]


def test_nothing_is_decided_twice() -> None:
    play = graph(step("a"), step("b"))
    play.decide()
    assert play.decide() == []
    play.restore()
    assert play.decide() == []


def test_a_sequential_plan_starts_one_step_at_a_time() -> None:
    play = Play(step("a"), step("b"), step("c"))
    assert play.decide()[2:] == ["StepStarted a"]
    assert play.end("a") == ["StepStarted b"]
    assert play.end("b") == ["StepStarted c"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_skip_ahead_of_its_turn_does_not_break_the_order_of_a_sequential_plan(taken_over: bool) -> None:
    play = Play(step("a"), step("b"), step("c"), step("d"))
    play.decide()
    assert play.signal("SKIP_STEP", stepId="b") == ["StepSkipped b OPERATOR_SKIP", "SignalProcessed"]
    assert play.signal("SKIP_STEP", 2, stepId="c") == ["StepSkipped c OPERATOR_SKIP", "SignalProcessed"]
    if taken_over:
        play.restore()
    assert play.end("a") == ["StepStarted d"]
    assert play.end("d") == ["RunCompleted"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_skip_ahead_of_a_step_that_also_depends_on_the_one_before_it_lets_the_next_go_on(taken_over: bool) -> None:
    play = Play(step("a"), step("b", "a"), step("c"), order=Order.SEQUENTIAL)
    play.decide()
    assert play.signal("SKIP_STEP", stepId="b") == ["StepSkipped b OPERATOR_SKIP", "SignalProcessed"]
    if taken_over:
        play.restore()
    assert play.end("a") == ["StepStarted c"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_in_a_graph_the_dependents_of_a_skipped_step_go_on_at_once(taken_over: bool) -> None:
    """Decisions 11 and 24: its own dependencies have ended, and an operator's skip does not propagate."""
    play = graph(step("a"), step("b", "a"), step("c", "b"), on_failure=OnFailure.WAIT)
    play.decide()
    play.end("a", error=ErrorInfo("BROKEN", "", retryable=False))
    if taken_over:
        play.restore()
    assert play.signal("SKIP_STEP", stepId="b") == ["StepSkipped b OPERATOR_SKIP", "SignalProcessed", "StepStarted c"]


def test_only_as_many_start_as_there_is_room_for_and_in_order() -> None:
    play = graph(*(step(name) for name in "dcba"), room=2)
    assert play.decide()[2:] == ["StepStarted d", "StepStarted c"]
    play.room = 1
    assert play.end("c") == ["StepStarted b"]
    play.room = 0
    assert play.end("b") == []
    assert play.end("d") == []
    play.room = 1
    assert play.decide() == ["StepStarted a"]


def test_a_class_without_room_holds_up_no_other() -> None:
    play = graph(step("heavy", step_class=StepClass.HEAVY), step("light"))
    play.decider.set_time(play.now)
    play.decider.decide(Capacity({StepClass.LIGHT: 1}))
    assert [told(made) for made in play.decider.drain_drafts()[0]][2:] == ["StepStarted light"]


def test_a_retry_without_room_holds_up_no_retry_of_another_class() -> None:
    policy = Retry(max_attempts=2, initial=0.0)
    play = graph(step("heavy", step_class=StepClass.HEAVY, retry=policy), step("light", retry=policy))
    play.decide()
    play.room = 0
    play.end("heavy", error=BROKEN)
    play.end("light", error=BROKEN)
    play.decider.set_time(play.now + 1)
    play.decider.decide(Capacity({StepClass.LIGHT: 1}))
    assert [told(made) for made in play.decider.drain_drafts()[0]] == ["StepStarted light #2"]


# When something fails


def test_a_failure_ends_the_run_once_what_runs_has_ended() -> None:
    play = graph(step("a"), step("b"), step("c", "a"), step("d", "b"))
    play.decide()
    assert play.end("a", error=ErrorInfo("BROKEN", "", retryable=False)) == []
    assert play.end("b") == ["StepSkipped c DEPENDENCY_FAILED", "StepSkipped d RUN_FAILED", "RunFailed"]


def test_a_step_that_failed_for_good_and_one_that_waits_for_its_retry_end_the_run_at_once() -> None:
    play = graph(step("a", retry=Retry(max_attempts=2, initial=60.0)), step("b"))
    play.decide()
    assert play.end("a", error=BROKEN) == ["StepRetryScheduled a"]
    assert play.end("b", error=BROKEN) == ["RunFailed"]


def test_continue_waits_for_the_retries_of_others() -> None:
    play = graph(step("a", retry=Retry(max_attempts=2, initial=60.0)), step("b"), on_failure=OnFailure.CONTINUE)
    play.decide()
    play.end("a", error=BROKEN)
    assert play.end("b", error=BROKEN) == []
    play.now += 61_000_000
    assert play.decide() == ["StepStarted a #2"]
    assert play.end("a", attempt=2) == ["RunFailed"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_continue_goes_on_after_a_step_that_depends_on_the_failure(taken_over: bool) -> None:
    """In a sequential plan as well: what does not depend on the failed step runs, in its order."""
    steps = step("a"), step("b", "a"), step("c"), step("d", "b"), step("e")
    play = Play(*steps, order=Order.SEQUENTIAL, on_failure=OnFailure.CONTINUE)
    play.decide()
    assert play.end("a", error=ErrorInfo("BROKEN", "", retryable=False)) == ["StepStarted c"]
    if taken_over:
        play.restore()
    assert play.end("c") == ["StepStarted e"]
    assert play.end("e") == ["StepSkipped b DEPENDENCY_FAILED", "StepSkipped d DEPENDENCY_FAILED", "RunFailed"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_forced_retry_that_fails_leaves_no_completed_run_with_a_failed_step(taken_over: bool) -> None:
    play = graph(step("a"), step("b"))
    play.decide()
    play.end("a")
    play.signal("RETRY_STEP", stepId="a", force=True)
    if taken_over:
        play.restore()
    play.end("a", error=BROKEN, attempt=2)
    play.end("b")
    assert play.status == "FAILED"


def test_a_forced_retry_names_its_signal() -> None:
    play = graph(step("a"), step("b"))
    play.decide()
    play.end("a")
    assert play.signal("RETRY_STEP", stepId="a", force=True) == [
        "StepRetryScheduled a",
        "SignalProcessed",
        "StepStarted a #2",
    ]
    started = play.drafts[-1]
    assert b'"forcedBy":"00000000-0000-4000-8000-000000000001"' in started.raw_payload


# Retries


def delays(policy: Retry, run_id: str = "run-1") -> list[float]:
    play = graph(step("a", retry=policy), run_id=run_id)
    play.decide()
    found: list[float] = []
    for attempt in range(1, policy.max_attempts):
        play.end("a", error=BROKEN, attempt=attempt)
        due = play.decider.execution.retry_at["a"]
        found.append((due - play.now) / 1e6)
        assert play.decider.scheduler.next_due() in (due, None)
        play.now = due
        assert play.decide() == [f"StepStarted a #{attempt + 1}"]
    assert play.end("a", error=BROKEN, attempt=policy.max_attempts) == ["RunFailed"]
    return found


def test_exponential_backoff_doubles_up_to_its_limit() -> None:
    policy = Retry(max_attempts=7, initial=0.5, longest=5.0, jitter=False)
    assert delays(policy) == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_fixed_backoff_stays_the_same() -> None:
    assert delays(Retry(max_attempts=4, backoff=Backoff.FIXED, initial=3.0, jitter=False)) == [3.0, 3.0, 3.0]


@given(st.text(st.characters(exclude_characters="|", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30))
def test_jitter_takes_off_at_most_half_and_is_the_same_for_the_same_run(run_id: str) -> None:
    policy = Retry(max_attempts=4, initial=2.0, longest=60.0)
    found = delays(policy, run_id)
    for jittered, full in zip(found, [2.0, 4.0, 8.0], strict=True):
        assert full / 2 <= jittered <= full
    assert found == delays(policy, run_id)


def test_jitter_spreads_runs_apart() -> None:
    assert len({delays(Retry(max_attempts=2, initial=2.0), f"run-{n}")[0] for n in range(20)}) > 15


def test_an_error_that_is_not_retryable_is_not_retried() -> None:
    play = graph(step("a", retry=Retry(max_attempts=5)))
    play.decide()
    assert play.end("a", error=ErrorInfo("GONE", "", retryable=False)) == ["RunFailed"]


def test_a_hundred_attempts_do_not_overflow_the_backoff() -> None:
    assert max(delays(Retry(max_attempts=100, initial=1.0, longest=60.0, jitter=False))) == 60.0


def test_a_retry_that_was_brought_forward_stays_so_for_whoever_takes_over() -> None:
    play = graph(step("a", retry=Retry(max_attempts=2, initial=60.0)))
    play.decide()
    play.end("a", error=BROKEN)
    play.accept("PAUSE")
    play.accept("RETRY_STEP", 2, stepId="a")
    play.decide()
    play.restore()
    play.now += 1000
    assert "StepStarted a #2" in play.signal("RESUME", 3)


# Pauses, timeouts, ends


def test_pause_comes_before_what_the_last_fact_leads_to() -> None:
    """A pause that was accepted while a completion was under way is never lost, and never refuses it."""
    play = Play(step("a"), step("b"))
    play.decide()
    play.accept("PAUSE")
    assert play.end("a")[1:] == ["RunPaused", "SignalProcessed"]
    assert play.status == "PAUSED"
    assert play.signal("RESUME", 2) == ["RunResumed", "SignalProcessed", "StepStarted b"]


def test_a_paused_run_does_not_complete() -> None:
    play = Play(step("a"))
    play.decide()
    play.signal("PAUSE")
    assert play.end("a") == []
    assert play.signal("RESUME", 2) == ["RunResumed", "SignalProcessed", "RunCompleted"]


def test_the_second_pause_and_its_resume_have_the_ordinal_two() -> None:
    play = Play(step("a"))
    play.decide()
    lines = [
        entry
        for n, kind in enumerate(("PAUSE", "RESUME", "PAUSE", "PAUSE", "RESUME", "RESUME"), 1)
        for entry in play.signal(kind, n)
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


def test_a_run_that_is_late_stops_its_steps_first_and_then_ends_in_one_go() -> None:
    play = graph(step("a"), step("b", "a"), timeout=10.0)
    play.decide()
    play.now += 10_000_000
    assert play.decide() == []
    assert play.decider.stop is not None
    assert play.decider.stop.code == "TIMEOUT"
    assert play.decide(stopped=True) == ["StepSkipped b RUN_FAILED", "StepFailed a TIMEOUT", "RunFailed RUN_TIMEOUT"]


def test_a_run_that_is_late_while_paused_fails_all_the_same() -> None:
    play = graph(step("a"), timeout=10.0)
    play.decide()
    play.signal("PAUSE")
    play.now += 11_000_000
    play.decide()
    assert play.decide(stopped=True)[-1] == "RunFailed RUN_TIMEOUT"


def test_signals_after_a_cancel_are_answered_with_the_end_of_the_run() -> None:
    play = graph(step("a"), step("b", "a"))
    play.decide()
    play.accept("CANCEL", 1)
    play.accept("PAUSE", 2)
    play.accept("SKIP_STEP", 3, stepId="b")
    lines = play.decide(stopped=True)
    assert lines[3:] == [
        "StepSkipped b RUN_CANCELLED",
        "StepFailed a CANCELLED",
        "RunCancelled",
        "SignalProcessed CANCELLED",
        "SignalProcessed RUN_TERMINAL",
        "SignalProcessed RUN_TERMINAL",
    ]


def test_an_emergency_stop_comes_before_everything_that_waits() -> None:
    play = graph(step("a"))
    play.decide()
    play.accept("PAUSE", 1)
    play.accept("EMERGENCY_STOP", 2, reason="fire")
    play.decide()
    assert play.decider.stop is not None
    assert play.decider.stop.by_force
    assert play.decide(stopped=True)[0] == "StepFailed a KILLED"
    assert play.status == "CANCELLED"


# Loops


def test_a_loop_hands_out_no_more_than_it_may_and_gathers_in_order() -> None:
    play = graph(Step(step_id="a", kind="noop", foreach=Foreach(["x", "y", "z"], "item", 2)))
    assert play.decide()[2:] == [
        "StepStarted a",
        "LoopStarted a",
        "LoopIterationStarted a[0]",
        "LoopIterationStarted a[1]",
    ]
    play.decider.emit("LoopIterationDone", "a[1]", 1, {"index": 1, "result": "second"})
    assert play.decide()[1:] == ["LoopIterationStarted a[2]"]
    play.decider.emit("LoopIterationDone", "a[2]", 1, {"index": 2, "result": "third"})
    play.decider.emit("LoopIterationDone", "a[0]", 1, {"index": 0, "result": "first"})
    assert play.decide()[2:] == ["LoopDone a", "StepCompleted a", "RunCompleted"]
    assert b'"result":["first","second","third"]' in play.drafts[-2].raw_payload


def test_an_iteration_that_fails_while_the_run_is_paused_keeps_its_retries() -> None:
    foreach = Foreach([1], "item", 2)
    play = graph(Step(step_id="a", kind="noop", foreach=foreach, retry=Retry(max_attempts=2, initial=0.0)))
    play.decide()
    play.signal("PAUSE")
    play.decider.emit("LoopIterationFailed", "a[0]", 1, payloads.LoopIteration(0, error=BROKEN))
    play.decide()
    play.restore()
    play.now += 1000
    assert "LoopIterationStarted a[0] #2" in play.signal("RESUME", 2)


def test_a_loop_whose_running_iterations_have_ended_is_not_draining() -> None:
    """There is nothing left to wait for: no iteration is at work, and none may start."""
    play = graph(Step(step_id="a", kind="noop", foreach=Foreach([1, 2, 3], "item", 1)))
    play.decider.drain_timeout = 300.0
    play.decide()
    play.signal("PAUSE")
    play.decider.emit("LoopIterationDone", "a[0]", 1, {"index": 0})
    play.decide()
    play.now += 301_000_000
    assert play.decide() == []


# The producer's own guard


def test_the_guard_names_what_was_expected_and_leaves_the_state_alone() -> None:
    play = graph(step("a"), step("b"))
    play.decide()
    play.end("a")
    before = play.decider.state.summary.completed_steps
    play.decider.emit("StepFailed", "a", 1, payloads.StepFailed(BROKEN))
    (violation,) = play.decider.violations
    assert violation.entity == "a"
    assert violation.facts == {
        "invalidTransitionDetected": True,
        "expectedState": "RUNNING",
        "actualState": "SUCCESS",
        "attemptedEventType": "StepFailed",
    }
    assert play.decider.drain_drafts()[0] == []
    assert play.decider.state.summary.completed_steps == before
    assert play.end("b") == ["RunCompleted"]


def test_of_the_run_itself_nothing_forbidden_can_be_passed_over() -> None:
    play = graph(step("a"))
    play.decide()
    with pytest.raises(Violation) as caught:
        play.decider.emit("RunResumed")
    assert caught.value.entity == "RUN"


def test_the_time_of_a_decision_is_the_time_it_was_given() -> None:
    play = graph(step("a"))
    play.decide()
    assert {to_micros(made.emitted_at) for made in play.drafts} == {BEGIN}


def test_a_step_that_runs_again_by_force_is_waited_for_again() -> None:
    """By whoever decides: what is not restored must not start what a restored decider would hold back."""
    play = graph(step("a"), step("other"), step("b", "a", "other"))
    play.decide()
    play.end("a")
    assert "StepStarted a #2" in play.signal("RETRY_STEP", stepId="a", force=True)
    assert play.end("other") == []
    assert play.end("a", attempt=2) == ["StepStarted b"]


def test_a_sequential_plan_waits_for_an_earlier_step_that_is_tried_again() -> None:
    play = Play(step("a"), step("b"), step("c"), order=Order.SEQUENTIAL, on_failure=OnFailure.CONTINUE)
    play.decide()
    assert play.end("a", error=ErrorInfo("BROKEN", "", retryable=False)) == ["StepStarted b"]
    assert "StepStarted a #2" in play.signal("RETRY_STEP", stepId="a")
    assert play.end("b") == []
    assert play.end("a", attempt=2) == ["StepStarted c"]


# Any plan, ended in any order, taken over at any moment


@given(st.data())
def test_whoever_takes_over_decides_the_same(data: st.DataObject) -> None:
    """Fold the log anew before each decision, or never: the events are the same."""
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
    one, other = (Play(*steps, order=order, on_failure=on_failure) for _ in range(2))
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
            done = [play.signal(kind, number + 1, stepId=name, **more) for play in (one, other)]
            assert done[0] == done[1]
        else:
            assert one.decide() == other.decide()


def test_whoever_takes_over_names_the_same_cause() -> None:
    """What failed first is the cause, also to somebody who saw neither failure happen."""
    play = graph(step("a"), step("b"), step("c"), on_failure=OnFailure.CONTINUE)
    play.decide()
    play.end("b", error=BROKEN)
    play.now += 1000
    play.end("a", error=BROKEN)
    play.restore()
    play.end("c")
    failed = next(made for made in play.drafts if made.event_type == "RunFailed")
    assert b'"rootCause":{"stepId":"b"' in failed.raw_payload


@pytest.mark.parametrize("kind", ["PAUSE", "CANCEL", "EMERGENCY_STOP"])
def test_nothing_is_handed_to_a_worker_once_a_signal_forbids_it(kind: str) -> None:
    """The signal is in the log, and the engine has not come round to it."""
    play = graph(step("a"), step("b"), queue="q")
    assert play.decide()[2:] == ["StepScheduled a", "StepScheduled b"]
    assert play.decider.claim("a", 1, "w")
    play.accept(kind)
    assert not play.decider.claim("b", 1, "w")
    play.accept("EVENT", 2, name="n")
    assert "StepStarted b" not in play.decide()
