"""The scheduler of playbooks: tokens move along arcs; a step with a token is admitted, visited and routed from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.plan import StepClass
from runwright.contract.playbook import MAX_JUMPS, ResultScope
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import RUN_TRANSITIONS, RunStatus
from runwright.core.expressions.template import evaluate_all, evaluate_copy
from runwright.core.fold.payload_reader import StoredResult
from runwright.core.fold.playbook_state import PipelineState, StepVisit, pipeline_key
from runwright.core.graph.node import Node
from runwright.core.graph.playbook_graph import PlaybookGraph, PlaybookStep
from runwright.core.scheduling.context import Capacity, Draft, SchedulingContext
from runwright.core.scheduling.due_times import DueTimes, timeout_error
from runwright.core.scheduling.result_refs import key_prefix
from runwright.core.scheduling.run_end_payloads import completed_payload, failed_payload
from runwright.core.scheduling.scheduler import AttemptEnd, ResultPrefix, RunningAttempt, Timeout
from runwright.core.scheduling.steps import fail_running_steps
from runwright.core.scheduling.stored_values import MissingValues, stored_result_field

from .arcs import evaluate_arcs
from .context import PlaybookContext
from .failures import FatalFailures
from .loops import (
    LoopEnd,
    collected_results,
    is_stopped,
    loop_end,
    schedule_iterations,
    scheduled_iterations,
    start_loop,
)
from .offers import TaskOffers
from .pipeline import (
    apply_policy,
    end_attempt,
    fail_running_tasks,
    is_running,
    next_label,
    running_tasks,
    start_task,
    task_path,
)
from .policies import PolicyInput
from .scope import output_of
from .tokens import TokenAdmission

_PIPELINE_EVENTS = frozenset(
    {
        "StepStarted",
        "LoopIterationStarted",
        "TaskStarted",
        "TaskAttemptDone",
        "TaskAttemptFailed",
        "PolicyTaskEvaluated",
        "TaskDone",
        "TaskFailed",
    }
)
_LOOP_EVENTS = frozenset({"LoopStarted", "LoopIterationDone", "LoopIterationFailed"})
_VISIT_EVENTS = frozenset({"StepScheduled", "StepCompleted", "StepFailed"})
_CLOSING_EVENTS = frozenset(
    {"StepCompleted", "StepFailed", "NextEvaluated", "RunCompleted", "RunFailed", "RunCancelled"}
)


class PlaybookScheduler:
    """One run of a playbook. A decision looks only at pipelines, loops and visits that were touched."""

    def __init__(self, context: SchedulingContext, graph: PlaybookGraph) -> None:
        self._context = context
        self._graph = graph
        self._playbook = PlaybookContext(context, graph)
        self._scope = self._playbook.scope
        self.due_times = DueTimes(context.execution)
        self._failures = FatalFailures(self._playbook)
        self._tokens = TokenAdmission(self._playbook)
        self.offers = TaskOffers(self._playbook, self._failures)
        self._pipelines: dict[str, None] = {}
        self._loops: dict[str, None] = {}
        self._visits: dict[str, None] = {}
        if self._playbook.is_started:
            state = self._playbook.state
            self._pipelines.update(dict.fromkeys(state.pipelines))
            self._pipelines.update(dict.fromkeys(scheduled_iterations(self._playbook)))
            self._visits.update(dict.fromkeys(state.visits))
            self._loops.update(dict.fromkeys(path for path in context.execution.loops if path in state.visits))

    # Scheduling

    def on_queued(self) -> None:
        self._context.emit("AdmissionEvaluated", payload=payloads.AdmissionEvaluated("START"))

    def on_emitted(self, event: Draft) -> None:
        path_text = event.step_id or ""
        if event.event_type in _PIPELINE_EVENTS:
            if (path := parse_path(path_text)) is not None:
                self._pipelines[pipeline_key(path)] = None
        elif event.event_type in _LOOP_EVENTS:
            if (path := parse_path(path_text)) is not None:
                self._loops[path.owner] = None
        elif event.event_type in _VISIT_EVENTS:
            self._visits[path_text] = None

    def propagate_ends(self) -> None: ...

    def _start_playbook(self) -> None:
        """Place the first token."""
        playbook, context = self._graph.playbook, self._context
        ctx: dict[str, Any] = {}
        error: ErrorInfo | None = None
        try:
            ctx = evaluate_all(playbook.ctx, self._scope.of_workload())
        except RunwrightError as problem:
            error = ErrorInfo(problem.code, problem.detail, retryable=False, category="plan")
        context.emit("WorkflowStarted", payload=payloads.WorkflowStarted(playbook.entry, ctx or None))
        if error is not None:
            duration_ms = context.ms_since(context.state.summary.started_at)
            self.end_run("RunFailed", failed_payload(None, error, duration_ms))

    def advance(self, capacity: Capacity) -> None:
        if not self._playbook.is_started:
            self._start_playbook()
        while self._context.status is RunStatus.RUNNING and not self._context.cost.is_spent:
            before = self._context.emitted
            if self.offers.queued and self._failures.all():
                self.offers.withdraw_unstarted_visits()
            self._expire_offers()
            self._start_retries(capacity)
            self._process_touched(self._pipelines, self._advance_pipeline, capacity)
            self._process_touched(self._loops, self._advance_loop, capacity)
            self._process_touched(self._visits, self._advance_visit, capacity)
            if not capacity.closed and not self._failures.all():
                self._tokens.admit_waiting()
            if self._context.cost.is_spent:
                return
            if self._context.emitted == before and not self._finish_if_done(capacity):
                return

    def advance_paused(self) -> None:
        """Nothing starts; pipelines and loops whose work is done end."""
        if not self._playbook.is_started or self._context.status is not RunStatus.PAUSED:
            return
        closed = Capacity({}, closed=True)
        self._process_touched(self._pipelines, self._advance_pipeline, closed)
        self._process_touched(self._loops, self._advance_loop, closed)

    def _process_touched(
        self, touched: dict[str, None], advance: Callable[[str, Capacity], bool], capacity: Capacity
    ) -> None:
        """Advance what was touched. `advance` returns False for what waits for capacity; that, and what waits for
        values, stays touched."""
        for key in list(touched):
            if self._context.cost.is_spent:
                return
            touched.pop(key, None)
            try:
                is_settled = advance(key, capacity)
            except MissingValues as missing:
                self._context.missing_values |= missing.refs
                is_settled = False
            if not is_settled:
                touched[key] = None
            self._context.mark_append_boundary()

    def next_due(self) -> int | None:
        due, deadline = self.due_times.next_after(self._context.now), self.offers.next_deadline()
        return due if deadline is None else deadline if due is None else min(due, deadline)

    def requeue_retry(self, path: str) -> None:
        self.due_times.add_retry(path)

    # Pipelines

    def _advance_pipeline(self, key: str, capacity: Capacity) -> bool:
        path = parse_path(key)
        pipeline = self._playbook.state.pipelines.get(key)
        if path is None or (pipeline is not None and pipeline.is_running):
            return True
        step = self._playbook.step_of(path)
        if pipeline is None:
            return self._start_iteration(step, path, capacity) if path.indexes else True
        if step.route.loop is not None and not path.indexes:
            return True  # the visit of a loop has no pipeline of its own; its iterations have
        if pipeline.pending_outcome is not None and pipeline.action is None:
            self._apply_policy(step, path, pipeline)
        if pipeline.task is not None and pipeline.action is None:
            return True  # it is retried later
        return self._start_next_task(step, path, pipeline, capacity)

    def _apply_policy(self, step: PlaybookStep, path: EntityPath, pipeline: PipelineState) -> None:
        limit_error = self._limit_error(step, path, pipeline, pipeline.attempt_ended_at)
        task = PolicyInput(step, path, pipeline, limit_error, self._deadline(path))
        assert pipeline.task is not None
        if apply_policy(self._playbook, task):
            self.requeue_retry(task_path(path, pipeline.task, pipeline.task_visits[pipeline.task]))

    def _start_pipeline(self, capacity: Capacity, key: str) -> None:
        touched: dict[str, None] = {key: None}
        self._process_touched(touched, self._advance_pipeline, capacity)
        self._pipelines |= touched

    def _start_iteration(self, step: PlaybookStep, path: EntityPath, capacity: Capacity) -> bool:
        """Start an iteration that was scheduled, now or before a recovery."""
        context, index = self._context, path.indexes[0]
        loop, visit = context.execution.loops.get(path.owner), self._playbook.state.visits.get(path.owner)
        if loop is None or index not in loop.unclaimed_attempts or is_stopped(step, loop):
            return True
        if visit is None or visit.end_event is not None:
            return True
        if capacity.closed:
            return False
        if step.queue is not None and not self._is_past_deadline(path):
            self._offer(path, step.labels[0], 1, 1)
            return True
        context.emit("LoopIterationStarted", str(path), 1, payloads.LoopIteration(index))
        return self._advance_pipeline(str(path), capacity)

    def _offer(self, path: EntityPath, label: str, visit: int, attempt: int) -> None:
        self.offers.add(task_path(path, label, visit), attempt, path.owner, self._deadline(path))

    def _expire_offers(self) -> None:
        for path_text, attempt in self.offers.expire():
            path = parse_path(path_text)
            if attempt > 1:
                self.requeue_retry(path_text)
            elif path is not None:
                self._pipelines[pipeline_key(path)] = None

    def _start_next_task(
        self, step: PlaybookStep, path: EntityPath, pipeline: PipelineState, capacity: Capacity
    ) -> bool:
        label = next_label(step, pipeline)
        when = (
            self._context.now if label is not None else pipeline.attempt_ended_at
        )  # a pipeline that ended in time is in time
        if pipeline.error is None:
            pipeline.error = self._limit_error(step, path, pipeline, when)
        if pipeline.error is not None or label is None:
            self._end_pipeline(path, pipeline, pipeline.error)
            return True
        if step.nodes[label].queue is not None and not capacity.closed:
            self._offer(path, label, pipeline.task_visits.get(label, 0) + 1, 1)
            return True
        if capacity.closed or not capacity.acquire(StepClass.LIGHT):
            capacity.refused = True
            return False
        start_task(self._playbook, step, path, pipeline, label)
        return True

    def _is_past_deadline(self, path: EntityPath, when: int | None = None) -> bool:
        deadline = self._deadline(path)
        return deadline is not None and (self._context.now if when is None else when) >= deadline

    def _limit_error(
        self, step: PlaybookStep, path: EntityPath, pipeline: PipelineState, when: int
    ) -> ErrorInfo | None:
        if self._is_past_deadline(path, when):
            return _step_timeout(step)
        if pipeline.jump_count > MAX_JUMPS:
            message = f"Jump limit of {MAX_JUMPS:,} exceeded: the pipeline probably loops forever."
            return ErrorInfo("JUMP_LIMIT", message, retryable=False, category="plan")
        return None

    def _end_pipeline(self, path: EntityPath, pipeline: PipelineState, error: ErrorInfo | None) -> None:
        context, path_text = self._context, str(path)
        duration_ms = context.ms_since_micros(pipeline.started_at)
        result = {} if error is not None else stored_result_field(pipeline.previous)
        if path.indexes:
            index = path.indexes[0]
            if error is not None:
                failed = payloads.LoopIteration(index, duration_ms=duration_ms, error=error)
                context.emit("LoopIterationFailed", path_text, 1, failed)
            else:
                context.emit("LoopIterationDone", path_text, 1, {"index": index, **result, "durationMs": duration_ms})
        elif error is not None:
            context.emit("StepFailed", path_text, 1, payloads.StepFailed(error, duration_ms))
        else:
            context.emit("StepCompleted", path_text, 1, {**result, "durationMs": duration_ms})

    def _start_retries(self, capacity: Capacity) -> None:
        """Start the tasks whose retry is due, as far as there is capacity."""
        context = self._context
        while (path_text := self.due_times.pop_retry(context.now)) is not None:
            path = parse_path(path_text)
            pipeline = None if path is None else self._playbook.pipeline_of(path)
            if pipeline is None or path is None or path.task is None:
                continue
            step = self._playbook.step_of(path)
            if (error := self._limit_error(step, path, pipeline, context.now)) is not None:
                context.emit("TaskFailed", path_text, pipeline.attempt, {"error": error, "idle": True})
                continue
            if step.nodes[path.task].queue is not None:
                self._offer(path, path.task, path.task_visit, pipeline.attempt + 1)
                continue
            if capacity.closed or not capacity.acquire(StepClass.LIGHT):
                capacity.refused = True
                self.requeue_retry(path_text)
                return
            context.emit("TaskAttemptStarted", path_text, pipeline.attempt + 1, payloads.TaskStarted())
            context.mark_append_boundary()

    def _deadline(self, path: EntityPath) -> int | None:
        """When the timeout of a visit passes."""
        timeout = self._playbook.step_of(path).node.step.timeout
        visit = self._playbook.state.pipelines.get(path.owner)
        return None if timeout is None or visit is None else visit.started_at + int(timeout * 1e6)

    # Loops

    def _advance_loop(self, path_text: str, capacity: Capacity) -> bool:
        context, visit = self._context, self._playbook.state.visits.get(path_text)
        loop, path = context.execution.loops.get(path_text), parse_path(path_text)
        if visit is None or loop is None or path is None or visit.end_event is not None:
            return True
        step = self._playbook.step_of(path)
        if self.offers.queued and is_stopped(step, loop):
            self.offers.withdraw_unstarted(path_text)
        start = partial(self._start_pipeline, capacity)
        try:
            is_settled = schedule_iterations(self._playbook, step, path, loop, capacity, start)
        except RunwrightError as error:  # the items of the loop are not available any more
            if not loop.running_since:
                self.offers.withdraw_unstarted(path_text)
                counts = payloads.LoopCounts(loop.total, loop.done, loop.failed, step_failed=True)
                context.emit("LoopDone", path_text, 1, counts)
                context.fail_step(path_text, 1, error.code, error.detail)
            return True
        if (end := loop_end(self._playbook, step, path_text, loop)) is None:
            return is_settled
        if end.error is not None and self._is_past_deadline(path):
            end.error = _step_timeout(step)
        self._end_loop(step, path_text, visit, end)
        return True

    def _end_loop(self, step: PlaybookStep, path: str, visit: StepVisit, end: LoopEnd) -> None:
        context, scope = self._context, self._scope_after(step, visit, end)
        if end.manifest is not None:
            context.emit("ResultManifestUpdated", path, 1, payloads.ResultStored(end.manifest))
        counts = payloads.LoopCounts(**end.counts, step_failed=end.error is not None)
        context.emit("LoopDone", path, 1, counts)
        if end.error is not None:
            context.emit("StepFailed", path, 1, payloads.StepFailed(end.error, end.duration_ms))
        else:
            self._route(step, path, "loop.done", scope)
            context.emit("StepCompleted", path, 1, {**end.result, "durationMs": end.duration_ms})

    # Visits

    def _advance_visit(self, path: str, _capacity: Capacity) -> bool:
        visit = self._playbook.state.visits.get(path)
        if visit is None:
            return True
        step = self._playbook.step(path.partition("@")[0])
        if not visit.is_started:
            self._start_visit(step, path, visit)
        elif visit.end_event is not None and not visit.is_routed:
            self._route(step, path, visit.end_event, self._scope_after(step, visit))
        return True

    def _start_visit(self, step: PlaybookStep, path: str, visit: StepVisit) -> None:
        if step.route.loop is not None:
            start_loop(self._playbook, step, path, visit.args)
        elif step.queue is None:
            self._context.emit("StepStarted", path, 1, payloads.StepStarted())
        elif not self._failures.all():  # after a failure nothing new starts
            self.offers.add(f"{path}/{step.labels[0]}", 1, path, None)

    def _scope_after(
        self, step: PlaybookStep, visit: StepVisit, loop: LoopEnd | None = None
    ) -> dict[str, Any] | RunwrightError:
        """The scope of the arcs of a step that ended, or the error that prevents their evaluation."""
        payload = {} if loop is None else dict(loop.counts)
        if visit.error is not None:
            payload["error"] = {"code": visit.error.code, "message": visit.error.message}
        try:
            scope = self._scope.of_step(step.arc_mentions, visit.args, (step.node.step.step_id, visit.result))
            own = {} if loop is None else collected_results(self._playbook, step, loop)
        except RunwrightError as error:
            return error
        found = {**scope, **own, "event": {"name": "loop.done" if loop else visit.end_event, "payload": payload}}
        if "step" in step.arc_mentions:
            found.setdefault("step", {**visit.args, **visit.iter_vars})
        if "output" in step.arc_mentions:
            value = found.get(step.node.step.step_id) if visit.error is None else None
            kind = None if visit.last_task is None else step.tasks[visit.last_task].kind
            found.setdefault("output", output_of(visit.error, value, kind))
        return found

    def _route(self, step: PlaybookStep, path: str, name: str, scope: dict[str, Any] | RunwrightError) -> None:
        no_next_is_error = self._graph.playbook.no_next_is_error
        payload = evaluate_arcs(step, name, scope, no_next_is_error=no_next_is_error)
        self._context.emit("NextEvaluated", path, 1, payload)

    # The end of the run

    def _finish_if_done(self, capacity: Capacity) -> bool:
        """End the run if nothing remains to be done. True if the final step was admitted instead."""
        context, state = self._context, self._playbook.state
        failures = self._failures.all()
        is_active = any(visit.is_started for visit in state.visits.values()) if failures else bool(state.visits)
        if is_active or context.missing_values or capacity.closed:
            return False
        final = self._graph.playbook.final_step
        waiting = [name for name in state.tokens if name != final]
        needs_final = final is not None and state.final_visit is None
        if not failures and not waiting and final is not None and needs_final and not self._tokens.is_denied(final):
            return self._tokens.admit(self._playbook.step(final), final, state.tokens.get(final, []), final=True)
        duration_ms = context.ms_since(context.state.summary.started_at)
        if failures:
            path, error = next(iter(failures.items()))
            self.end_run("RunFailed", failed_payload(path, error, duration_ms))
        elif waiting or needs_final:
            path = waiting[0] if waiting else str(final)
            self.end_run("RunFailed", failed_payload(path, self._deadlock_error(waiting, final), duration_ms))
        else:
            self.end_run("RunCompleted", completed_payload(list(state.artifacts), duration_ms))
        return False

    def _deadlock_error(self, waiting: list[str], final: str | None) -> ErrorInfo:
        denied = [name for name in waiting if name in self._playbook.state.denied_tokens]  # the others wait for these
        names = ", ".join(denied or waiting) or str(final)
        message = f"Admission deadlock: nothing is running, and these steps wait for admission: {names}."
        return ErrorInfo("ADMISSION_DEADLOCK", message, retryable=False, category="plan")

    def skip_pending(self, code: str, reason: str) -> bool:
        """Nothing to skip: a step without a token was not going to run."""
        del code, reason
        return True

    def end_running(self, error: ErrorInfo) -> None:
        fail_running_tasks(self._playbook, error)
        fail_running_steps(self._context, error)

    def end_run(self, event_type: str, payload: payloads.RunEnded) -> None:
        status = RUN_TRANSITIONS[event_type][1]
        self._context.emit("WorkflowFinished", payload=payloads.WorkflowFinished(status))
        self._context.emit(event_type, payload=payload)
        self._context.emit("RunProcessed")

    def stored_result(self) -> StoredResult | None:
        name = self._result_step()
        is_loop = name is not None and self._playbook.step(name).route.loop is not None
        return None if name is None or is_loop else self._context.execution.results[name]

    def result(self) -> Any:
        """The result of the final step, or of the step that ended last."""
        name = self._result_step()
        if name is None:
            return None
        value = self._context.values.load(self._context.execution.results[name])
        return value if self._playbook.step(name).route.loop is None else self._context.values.load_items(value)

    def _result_step(self) -> str | None:
        if not self._playbook.is_started:
            return None
        state = self._playbook.state
        name = (state.final_visit or state.result_visit or "").partition("@")[0]
        return name if name in self._context.execution.results else None

    # Attempts

    def is_running(self, path: str, attempt: int) -> bool:
        return is_running(self._playbook, path, attempt)

    def running_attempts(self) -> list[RunningAttempt]:
        return running_tasks(self._playbook)

    def starts_execution(self, event: Draft) -> bool:
        """A task without a policy is executed when it starts, one with a policy when each attempt starts."""
        if event.event_type != "TaskStarted":
            return event.event_type == "TaskAttemptStarted"
        path = parse_path(event.step_id or "")
        return path is not None and self._playbook.step_of(path).tasks[path.task or ""].rules is None

    def on_attempt_ended(self, end: AttemptEnd) -> None:
        end_attempt(self._playbook, end)

    def inputs_of(self, node: Node, path: str, more: dict[str, Any]) -> Any:
        del more
        if node.body is not None:
            return msgspec.json.decode(node.body)  # a copy: the task may modify it
        parsed = parse_path(path)
        assert parsed is not None
        step, pipeline = self._playbook.step_of(parsed), self._playbook.state.pipelines[pipeline_key(parsed)]
        mentions = step.input_mentions[parsed.task or ""]
        return evaluate_copy(node.step.inputs, self._scope.of_task(mentions, step, parsed, pipeline))

    def timeout_of(self, node: Node, path: str) -> Timeout | None:
        """The timeout of the task, or the rest of the timeout of its step if that is shorter."""
        parsed = parse_path(path)
        deadline = None if parsed is None else self._deadline(parsed)
        own, seconds = None, node.step.timeout
        if seconds is not None:
            own = Timeout(seconds, timeout_error(seconds, "The task"))
        if parsed is None or deadline is None:
            return own
        rest = max(0, deadline - self._context.now) / 1e6
        if own is not None and own.seconds < rest:
            return own
        return Timeout(rest, _step_timeout(self._playbook.step_of(parsed)))

    def inherited_secret_names(self, path: str) -> frozenset[str]:
        parsed = parse_path(path)
        return frozenset() if parsed is None else self._playbook.step_of(parsed).inherited_secrets

    def iteration_of(self, path: str) -> dict[str, Any] | None:
        parsed = parse_path(path)
        if parsed is None or not parsed.indexes:
            return self._context.execution.parent_iter  # the same at every depth of sub-runs
        pipeline = self._playbook.state.pipelines[pipeline_key(parsed)]
        return self._scope.iteration(self._playbook.step_of(parsed), parsed, pipeline)

    def results_out_of_scope(self, events: list[Draft]) -> Collection[ResultPrefix]:
        """Results whose scope ends with these events. Those that a crash leaves are found by `prune`."""
        prefixes: dict[ResultPrefix, None] = {}
        if self._graph.temporary_stores:
            for event in events:
                if event.event_type in _CLOSING_EVENTS:
                    self._add_results_out_of_scope(parse_path(event.step_id or ""), prefixes)
        return prefixes

    def _add_results_out_of_scope(self, path: EntityPath | None, prefixes: dict[ResultPrefix, None]) -> None:
        """Add the results whose scope ends with a step, or with the run if `path` is None."""
        if path is not None and (not self._playbook.is_started or path.owner in self._playbook.state.visits):
            return  # its arcs were not evaluated yet
        for temporary in self._graph.temporary_stores:
            if path is None or (temporary.scope is ResultScope.STEP and temporary.step == path.step):
                store = temporary.store or self._context.graph.store
                prefix = key_prefix(temporary.scope, self._context.run.run_id, path)
                prefixes[ResultPrefix(store, prefix)] = None

    # Workers

    def queued_for_workers(self) -> dict[str, int]:
        return self.offers.queued

    def claim(self, path: str, attempt: int, worker: str) -> bool:
        return self.offers.claim(path, attempt, worker)


def _step_timeout(step: PlaybookStep) -> ErrorInfo:
    return timeout_error(step.node.step.timeout or 0.0, "The step")
