"""Read a NoETL playbook, in any of its spellings, to an ExecutionPlan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from runwright.contract.errors import RunwrightError
from runwright.contract.plan import PIPELINE, ExecutionPlan, Order, PlanMetadata, Step
from runwright.contract.plan_struct import make_canonical
from runwright.contract.playbook import AdmitRule, Arc, ArcMode, FailureMode, Join, PipelineLoop, Playbook, Route, Task
from runwright.core.expressions.template import has_expression, mentioned_names
from runwright.core.playbook.scope import NO_NAMES, RESERVED_NAMES, workload_scope
from runwright.plans.field_reader import FieldReader, check_step_count
from runwright.plans.header import read_identifier
from runwright.plans.input_checks import ToolsByKind
from runwright.plans.load_limits import check_cancelled
from runwright.plans.problems import (
    INVALID_EXPRESSION,
    INVALID_PLAN,
    INVALID_STEP,
    DocumentPath,
    ProblemCollector,
    did_you_mean,
    quoted_list,
)
from runwright.plans.secret_refs import find_secret_values, is_secret_ref
from runwright.plans.steps import check_entity_name, read_dispatch

from .policies import (
    ELSE_IS_LAST,
    LOOP_DONE,
    STEP_DONE,
    check_expressions,
    predecessor_end_events,
    read_assignments,
    read_condition_text,
    read_rule,
    rename_legacy_events,
)
from .tasks import TaskDefaults, TaskReader, read_args
from .workbook import Workbook

VERSIONS = ("noetl.io/v2", "noetl.io/v10")
PLAYBOOK_FIELDS = (
    "apiVersion",
    "kind",
    "metadata",
    "keychain",
    "executor",
    "workload",
    "workflow",
    "workbook",
    "ctx",
    "labels",
)
STEP_FIELDS = ("step", "desc", "description", "spec", "loop", "tool", "args", "input", "next", "set", "join")

REMOVED_FIELDS = {
    "when": "A step has no `when`: put the condition on the arcs that lead to it, or into spec.policy.admit.",
    "output": "A step has no `output`: use `spec.result` of its task.",
    "case": "`case` is no longer supported: put conditions on the arcs of `next`, and policies on tasks.",
    "retry": "`retry` is no longer supported: use the policy of the task (spec.policy.rules, do: retry).",
    "sink": "`sink` is no longer supported: store data with a task.",
    "expr": "`expr` is no longer supported: write the condition as `when`.",
    "eval": "`eval` is no longer supported: write the condition as `when`.",
    "vars": "`vars` is no longer supported: use `workload` for inputs, and `ctx` for values that change.",
}
_IGNORED_EXECUTOR_FIELDS = ("profile", "version", "requires")
"""Fields of the executor that only other engines use."""

_WHERE_TO_REFER = "where it is used: {secret: NAME} as an input of a task, or `auth: NAME`."


def is_playbook(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    mapping = cast("dict[str, Any]", data)
    return str(mapping.get("apiVersion", "")).startswith("noetl.io/") or mapping.get("kind") == "Playbook"


def read_playbook(
    data: dict[str, Any], tools: ToolsByKind, problems: ProblemCollector, link: Callable[[str], str] | None
) -> ExecutionPlan | None:
    """Return the plan, or None if errors were found."""
    top = FieldReader(data, (), INVALID_PLAN, problems)
    _reject_removed(top, data)
    top.reject_unknown(PLAYBOOK_FIELDS, "a playbook", except_for=REMOVED_FIELDS)
    if top.raw("kind") != "Playbook":
        top.error("kind" if "kind" in top else None, "`kind` of a playbook must be `Playbook`.")
    if "keychain" in top:
        sentence = "`keychain` is ignored: tasks name credentials with `auth`, and the secrets provider supplies them."
        problems.warning(("keychain",), sentence)
    version = top.text("apiVersion")
    if version not in VERSIONS:
        top.error("apiVersion" if version else None, f"`apiVersion` must be one of {', '.join(VERSIONS)}.")
    metadata = _metadata(top)
    workload = top.mapping("workload") or {}
    _check_workload(workload, problems)
    reader = _PlaybookReader(top, tools, problems, link, metadata.plan_id)
    steps = reader.steps()
    playbook = reader.playbook(steps)
    if problems.errors or playbook is None:
        return None
    return make_canonical(
        ExecutionPlan, metadata=metadata, params=workload, order=Order.ROUTED, steps=tuple(steps), playbook=playbook
    )


def _reject_removed(fields: FieldReader, data: dict[str, Any]) -> None:
    for name, sentence in REMOVED_FIELDS.items():
        if name in data:
            fields.error(name, sentence, on_key=True)


def _metadata(top: FieldReader) -> PlanMetadata:
    fields = top.nested("metadata")
    if fields is None:
        if "metadata" not in top:
            top.error(None, "A playbook must have `metadata` with a name.")
        return PlanMetadata(plan_id="playbook")
    name = read_identifier(fields, "name") or read_identifier(fields, "path")
    if not name:
        fields.error(None, "`metadata` has no name.")
    version = fields.raw("version")
    return make_canonical(
        PlanMetadata,
        plan_id=name or "playbook",
        plan_version="" if version is None else str(version),
        description=fields.text("description"),
    )


def _check_workload(workload: dict[str, Any], problems: ProblemCollector) -> None:
    for name in workload:
        if name == "execution_id":
            problems.warning(("workload", name), "This value is ignored: `execution_id` is set by the run.")
        elif name in RESERVED_NAMES:
            sentence = f"The name {name!r} is reserved in expressions. Rename this field of the workload."
            problems.error(("workload", name), INVALID_PLAN, sentence, on_key=True)
    check_expressions(workload, ("workload",), problems)
    known = workload_scope(workload, "").keys()
    for name, value in workload.items():
        for unknown in sorted(_mentioned(value) - known) if name != "execution_id" else ():
            sentence = f"Unknown name {unknown!r}: a workload may use only its own fields and `execution_id`."
            problems.error(("workload", name), INVALID_EXPRESSION, sentence)
    advice = f"Remove it from the playbook and refer to it {_WHERE_TO_REFER}"
    for path, sentence in find_secret_values(workload, (), advice=advice):
        if not _is_credential_name(workload, path):
            problems.error(("workload", *path), INVALID_PLAN, sentence)
    for path in _secret_ref_paths(workload, ()):
        sentence = f"Secret references in a workload are not resolved. Refer to the secret {_WHERE_TO_REFER}"
        problems.error(("workload", *path), INVALID_PLAN, sentence)


def _secret_ref_paths(value: Any, path: DocumentPath) -> list[DocumentPath]:
    if is_secret_ref(value):
        return [path]
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    return [found for key, item in items for found in _secret_ref_paths(item, (*path, key))]


def _mentioned(value: Any) -> frozenset[str]:
    try:
        return mentioned_names(value)
    except RunwrightError:
        return frozenset()  # invalid expressions have already been reported


def _is_credential_name(workload: dict[str, Any], path: DocumentPath) -> bool:
    """Whether the value is the name of a credential for `auth`, not the credential itself."""
    value: Any = workload
    for part in path:
        value = value[part]
    key = str(path[-1]).lower() if path else ""
    return (
        key.endswith("credential")
        and isinstance(value, str)
        and re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", value) is not None
    )


def _step_names(workflow: Any) -> list[str]:
    steps = cast("list[Any]", workflow) if isinstance(workflow, list) else []
    return [str(cast("dict[str, Any]", step).get("step")) for step in steps if isinstance(step, dict)]


class _StepSpec(NamedTuple):
    join: Join = Join.BARRIER
    failure: FailureMode = FailureMode.FAIL_FAST
    timeout: float | None = None
    admit: tuple[AdmitRule, ...] = ()


class _Next(NamedTuple):
    mode: ArcMode
    arcs: tuple[Arc, ...]


class _PlaybookReader:
    def __init__(
        self,
        top: FieldReader,
        tools: ToolsByKind,
        problems: ProblemCollector,
        link: Callable[[str], str] | None,
        plan_id: str,
    ) -> None:
        self._top = top
        self._problems = problems
        workbook = Workbook(top, problems, plan_id, self._step)
        self._tasks = TaskReader(tools, problems, link, workbook)
        self._step_paths: dict[str, DocumentPath] = {}
        self._arc_targets: list[tuple[str, DocumentPath]] = []
        self._end_events = predecessor_end_events(top.raw("workflow"))
        # Names that expressions of the playbook resolve to the workload or to steps.
        self._known_names = {*(top.mapping("workload") or {}), *_step_names(top.raw("workflow"))}
        executor = top.nested("executor")
        if executor is not None:
            executor.reject_unknown(("spec", *_IGNORED_EXECUTOR_FIELDS), "the executor")
            executor.warn_ignored(*_IGNORED_EXECUTOR_FIELDS)
        self._executor = None if executor is None else executor.nested("spec")
        self._defaults = TaskDefaults() if self._executor is None else self._executor_defaults(self._executor)

    def _executor_defaults(self, spec: FieldReader) -> TaskDefaults:
        policy = spec.nested("policy")
        defaults = None if policy is None else policy.nested("defaults")
        if policy is not None:
            policy.reject_unknown(("defaults", "results"), "the policy of the executor")
            if "results" in policy:
                sentence = "`results` is ignored: use `spec.result` of the tasks."
                self._problems.warning((*policy.path, "results"), sentence)
        if defaults is not None:
            defaults.reject_unknown(("timeout_s",), "`defaults`")
        return TaskDefaults(read_dispatch(spec), None if defaults is None else defaults.timeout("timeout_s"))

    def steps(self) -> list[Step]:
        workflow = self._top.raw("workflow")
        if not isinstance(workflow, list) or not workflow:
            self._top.error("workflow" if workflow else None, "A playbook must have a `workflow`: a list of steps.")
            return []
        if not check_step_count(self._top, "workflow", len(cast("list[Any]", workflow))):
            return []
        steps: list[Step] = []
        for index, data in enumerate(cast("list[Any]", workflow)):
            check_cancelled()
            path: DocumentPath = ("workflow", index)
            if not isinstance(data, dict):
                self._problems.error(path, INVALID_STEP, "A step must be a mapping that begins with `step: name`.")
                continue
            step = self._step(cast("dict[str, Any]", data), path)
            if step is None:
                continue
            if step.step_id in self._step_paths:
                self._problems.error((*path, "step"), INVALID_PLAN, f"Duplicate step {step.step_id!r}.")
            self._step_paths.setdefault(step.step_id, path)
            steps.append(step)
        return steps

    def _step(self, data: dict[str, Any], path: DocumentPath) -> Step | None:
        fields = FieldReader(data, path, INVALID_STEP, self._problems)
        name = fields.text("step")
        if not name:
            fields.error(None, "The step has no name. Begin it with `step: name`.")
            return None
        check_entity_name(fields, "step", name, "name")
        if name in NO_NAMES:
            fields.error("step", f"The name {name!r} is reserved in expressions. Rename the step.")
        _reject_removed(fields, data)
        fields.reject_unknown(STEP_FIELDS, "a step", except_for=REMOVED_FIELDS)
        if "tool" not in fields and "next" not in fields:
            fields.error(None, "A step must have a `tool`, a `next`, or both.")
        spec_fields = fields.nested("spec")
        spec = self._spec(name, spec_fields)
        tasks = self._pipeline(fields, name, None if spec_fields is None else read_dispatch(spec_fields))
        loop = self._loop(fields)
        following = self._next(fields, LOOP_DONE if loop is not None else STEP_DONE)
        assignments = read_assignments(fields, "set", self._problems)
        for key in (*assignments.iter, *assignments.plain):
            fields.error("set", f"A step must set `ctx.{key}`; only a task may set {key!r}.")
        route = make_canonical(
            Route,
            tasks=tasks,
            loop=loop,
            admit=spec.admit,
            mode=following.mode,
            arcs=following.arcs,
            join=fields.choice("join", spec.join),
            failure=spec.failure,
            set_ctx=assignments.ctx,
        )
        return make_canonical(Step, step_id=name, kind=PIPELINE, timeout=spec.timeout, route=route)

    def _spec(self, name: str, fields: FieldReader | None) -> _StepSpec:
        if fields is None:
            return _StepSpec()
        fields.reject_unknown(("policy", "join", "dispatch"), "the spec of a step")
        join = fields.choice("join", Join.BARRIER)
        policy = fields.nested("policy")
        if policy is None:
            return _StepSpec(join)
        policy.reject_unknown(("admit", "lifecycle", "failure"), "the policy of a step")
        failure = policy.nested("failure")
        if failure is not None:
            failure.reject_unknown(("mode",), "`failure`")
        mode = FailureMode.FAIL_FAST if failure is None else failure.choice("mode", FailureMode.FAIL_FAST)
        lifecycle = policy.nested("lifecycle")
        timeout = None
        if lifecycle is not None:
            lifecycle.reject_unknown(("timeout_s",), "`lifecycle`")
            timeout = lifecycle.timeout("timeout_s")
        return _StepSpec(join, mode, timeout, self._admit(name, policy))

    def _admit(self, name: str, policy: FieldReader) -> tuple[AdmitRule, ...]:
        admit = policy.nested("admit")
        if admit is None:
            return ()
        rules: Any = admit.raw("rules")
        if not isinstance(rules, list):
            sentence = "`admit` must have `rules`: a list of `when` and `then`."
            admit.error("rules" if rules is not None else None, sentence)
            return ()
        found: list[AdmitRule] = []
        end_events = self._end_events.get(name, set())
        end_event = next(iter(end_events)) if len(end_events) == 1 else None
        for index, rule in enumerate(cast("list[Any]", rules)):
            path = (*admit.path, "rules", index)
            when, then = read_rule(rule, path, self._problems)
            when = rename_legacy_events(when, end_event, (*path, "when"), self._problems)
            if when is None and index + 1 < len(rules):  # pyright: ignore[reportUnknownArgumentType]
                self._problems.error(path, INVALID_STEP, ELSE_IS_LAST)
            allow = None if then is None else then.get("allow")
            if not isinstance(allow, bool):
                sentence = "A rule of `admit` must have `then: {allow: true}` or `then: {allow: false}`."
                self._problems.error(path, INVALID_STEP, sentence)
                continue
            found.append(AdmitRule(allow, when))
        return tuple(found)

    def _pipeline(self, fields: FieldReader, step: str, dispatch: dict[str, str] | None) -> tuple[Task, ...]:
        tool, path = fields.raw("tool"), (*fields.path, "tool")
        defaults = TaskDefaults(dispatch or self._defaults.dispatch, self._defaults.timeout, read_args(fields))
        return () if tool is None else self._tasks.pipeline(tool, path, step, defaults)

    def _loop(self, fields: FieldReader) -> PipelineLoop | None:
        loop = fields.nested("loop")
        if loop is None:
            return None
        loop.reject_unknown(("in", "iterator", "spec"), "a loop")
        items, iterator = loop.raw("in"), loop.text("iterator")
        if items is None:
            loop.error(None, "A loop must have `in`: a list, or an expression that returns one.")
        elif not isinstance(items, list) and not (isinstance(items, str) and has_expression(items)):
            loop.error("in", "`in` must be a list, or an expression that returns one.")
        check_expressions(items, (*loop.path, "in"), self._problems)
        self._check_iterator(loop, iterator)
        spec = loop.nested("spec")
        mode, max_in_flight = "sequential", 1
        if spec is not None:
            spec.reject_unknown(("mode", "max_in_flight", "policy"), "the spec of a loop")
            if "policy" in spec:
                sentence = "`policy` is ignored: use `spec.dispatch` of the tasks."
                self._problems.warning((*spec.path, "policy"), sentence)
            mode = spec.text("mode") or "sequential"
            if mode not in ("sequential", "parallel"):
                spec.error("mode", "`mode` must be sequential or parallel.")
            max_in_flight = self._max_in_flight(spec)
        return make_canonical(
            PipelineLoop,
            items=items,
            iterator=iterator or "item",
            parallel=mode == "parallel",
            max_in_flight=max_in_flight,
        )

    def _check_iterator(self, loop: FieldReader, iterator: str | None) -> None:
        if not iterator:
            loop.error(None, "A loop must have an `iterator`: the name of each item, as in iter.name.")
        elif not iterator.isidentifier() or iterator in ("index", "parent"):
            loop.error("iterator", "`iterator` must be an identifier other than `index` and `parent`.")
        elif iterator in self._known_names:
            sentence = (
                f"{iterator!r} without `iter.` refers to the workload or a step. Write `iter.{iterator}` for the item."
            )
            self._problems.warning((*loop.path, "iterator"), sentence)

    def _max_in_flight(self, spec: FieldReader) -> int | str:
        value = spec.raw("max_in_flight")
        if isinstance(value, str) and has_expression(value):
            check_expressions(value, (*spec.path, "max_in_flight"), self._problems)
            return value
        return spec.integer("max_in_flight", 16, 1, 10_000)

    def _next(self, fields: FieldReader, end_event: str) -> _Next:
        """Read `next`: the name of a step, a list of arcs, or a mapping with `arcs`."""
        data = fields.raw("next")
        path: DocumentPath = (*fields.path, "next")
        mode, arcs = ArcMode.EXCLUSIVE, data
        if isinstance(data, str):
            arcs = [{"step": data}]
        elif isinstance(data, dict):
            nested = fields.nested("next")
            assert nested is not None
            nested.reject_unknown(("spec", "arcs"), "`next`")
            mode = _next_mode(nested.nested("spec"))
            arcs, path = nested.raw("arcs"), (*path, "arcs")
        if arcs is None:
            return _Next(mode, ())
        if not isinstance(arcs, list):
            self._problems.error(path, INVALID_STEP, "`next` must have arcs: a list of `{step, when, args}`.")
            return _Next(mode, ())
        found = [self._arc(arc, (*path, index), end_event) for index, arc in enumerate(cast("list[Any]", arcs))]
        return _Next(mode, tuple(arc for arc in found if arc is not None))

    def _arc(self, data: Any, path: DocumentPath, end_event: str) -> Arc | None:
        if isinstance(data, str):
            data = {"step": data}
        if not isinstance(data, dict) or not isinstance(data.get("step"), str):  # pyright: ignore[reportUnknownMemberType]
            self._problems.error(path, INVALID_STEP, "An arc must have a target: `step: name`.")
            return None
        fields = FieldReader(cast("dict[str, Any]", data), path, INVALID_STEP, self._problems)
        fields.reject_unknown(("step", "when", "args", "set", "input"), "an arc")
        target = str(fields.raw("step"))
        self._arc_targets.append((target, path))
        when = rename_legacy_events(fields.raw("when"), end_event, (*path, "when"), self._problems)
        when = read_condition_text(when, (*path, "when"), self._problems)
        args, set_ctx = self._arc_assignments(fields)
        return make_canonical(Arc, step=target, when=when, args=args, set_ctx=set_ctx)

    def _arc_assignments(self, fields: FieldReader) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of an arc, and the values that it sets in `ctx`."""
        args: dict[str, Any] = {}
        set_ctx: dict[str, Any] = {}
        for name in ("args", "input", "set"):
            for key, value in (fields.mapping(name) or {}).items():
                check_expressions(value, (*fields.path, name, key), self._problems)
                scope, dot, rest = key.partition(".")
                if name == "set" and scope == "ctx" and rest and "." not in rest:
                    set_ctx[rest] = value
                elif name == "set" and scope == "iter" and rest:
                    fields.error(name, f"An arc cannot set {key!r} of an iteration. Set `ctx.name` or an argument.")
                elif name == "set" and dot and (scope not in ("args", "step") or not rest):
                    fields.error(name, f"An arc cannot set {key!r}. Set `ctx.name` or an argument.")
                else:
                    args[rest if scope in ("args", "step") and rest else key] = value
        return args, set_ctx

    def playbook(self, steps: list[Step]) -> Playbook | None:
        """Read the settings of the whole playbook, after all of its steps."""
        if not steps:
            return None
        self._tasks.check_unused()
        self._check_targets()
        entry, final, no_next_is_error = steps[0].step_id, None, False
        if (spec := self._executor) is not None:
            known = ("entry_step", "final_step", "no_next_is_error", "dispatch", "policy")
            spec.reject_unknown(known, "the spec of the executor")
            entry = self._step_name(spec, "entry_step") or entry
            final = self._step_name(spec, "final_step")
            if any(step.step_id == final and step.route is not None and step.route.arcs for step in steps):
                spec.error("final_step", f"The final step {final!r} must not have a `next`.")
            no_next_is_error = spec.flag("no_next_is_error", False)
        self._warn_unreachable(steps, entry, final)
        ctx = self._top.mapping("ctx") or {}
        check_expressions(ctx, ("ctx",), self._problems)
        return make_canonical(Playbook, entry=entry, final_step=final, no_next_is_error=no_next_is_error, ctx=ctx)

    def _step_name(self, spec: FieldReader, field: str) -> str | None:
        step = spec.text(field)
        if step is not None and step not in self._step_paths:
            spec.error(field, f"Unknown step {step!r}.{did_you_mean(step, self._step_paths)}")
        return step

    def _check_targets(self) -> None:
        for name, path in self._arc_targets:
            if name not in self._step_paths:
                advice = did_you_mean(name, self._step_paths)
                self._problems.error(path, INVALID_PLAN, f"Unknown step {name!r} in an arc.{advice}")

    def _warn_unreachable(self, steps: list[Step], entry: str, final: str | None) -> None:
        arcs = {step.step_id: [arc.step for arc in step.route.arcs] for step in steps if step.route is not None}
        reached: set[str] = set()
        frontier = [name for name in (entry, final) if name is not None]
        while frontier:
            name = frontier.pop()
            if name not in reached:
                reached.add(name)
                frontier += arcs.get(name, [])
        unreachable = [step.step_id for step in steps if step.step_id not in reached]
        if unreachable:
            sentence = f"No arc leads to {quoted_list(unreachable)}: they will never run."
            self._problems.warning(self._step_paths[unreachable[0]], sentence)


def _next_mode(spec: FieldReader | None) -> ArcMode:
    if spec is None:
        return ArcMode.EXCLUSIVE
    spec.reject_unknown(("mode", "on_no_match"), "the spec of `next`")
    if spec.raw("on_no_match") not in (None, "quiet"):
        sentence = "`on_no_match` must be quiet. For an error, use `executor.spec.no_next_is_error`."
        spec.error("on_no_match", sentence)
    return spec.choice("mode", ArcMode.EXCLUSIVE)
