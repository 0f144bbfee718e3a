"""A NoETL playbook, in either of its spellings, as an ExecutionPlan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from runwright.contract.errors import RunwrightError
from runwright.contract.plan import PIPELINE, ExecutionPlan, Order, PlanMetadata, Step
from runwright.contract.playbook import AdmitRule, Arc, FailureMode, Join, Mode, PipelineLoop, Playbook, Route, Task
from runwright.core.expressions import has_expression, mentioned_names
from runwright.core.playscope import NO_NAMES, RESERVED_NAMES, workload_scope

from .fields import Fields
from .header import identity
from .kinds import Kinds
from .parts import make_part
from .playbook_ends import LOOP_DONE, STEP_DONE, ends_before, in_todays_words
from .playbook_rules import ELSE_IS_LAST, check_texts, checked_condition, read_condition, read_settings
from .playbook_tasks import Outer, TaskReader, read_args
from .playbook_workbook import Workbook
from .problems import EXPRESSION, PLAN, STEP, Findings, Path, did_you_mean, listed
from .secrets import find_secrets, is_secret_ref
from .steps import check_name, read_dispatch

VERSIONS = ("noetl.io/v2", "noetl.io/v10")
ROOT = ("apiVersion", "kind", "metadata", "keychain", "executor", "workload", "workflow", "workbook", "ctx", "labels")
STEP_FIELDS = ("step", "desc", "description", "spec", "loop", "tool", "args", "input", "next", "set", "join")

GONE = {
    "when": "A step has no `when`: put the condition on the arcs that lead to it, or into spec.policy.admit.",
    "output": "A step has no `output`: what becomes of a result is said in `spec.result` of its task.",
    "case": "`case` is gone: put conditions on the arcs of `next`, and policies on tasks.",
    "retry": "`retry` is gone: a task's policy says when it is tried again (spec.policy.rules, do: retry).",
    "sink": "`sink` is gone: storing is a task like any other.",
    "expr": "`expr` is gone: write the condition as `when`.",
    "eval": "`eval` is gone: write the condition as `when`.",
    "vars": "`vars` is gone: use `workload` for what is given, `ctx` for what changes.",
}


def is_playbook(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    given = cast("dict[str, Any]", data)
    return str(given.get("apiVersion", "")).startswith("noetl.io/") or given.get("kind") == "Playbook"


def read_playbook(
    data: dict[str, Any], kinds: Kinds, findings: Findings, link: Callable[[str], str] | None
) -> ExecutionPlan | None:
    """The plan, or None if errors were found."""
    top = Fields(data, (), PLAN, findings)
    _refuse_gone(top, data)
    top.refuse_unknown(ROOT, "A playbook", but=GONE)
    if top.raw("kind") != "Playbook":
        top.wrong("kind" if "kind" in top else None, "A playbook says so: `kind: Playbook`.")
    if "keychain" in top:
        sentence = "`keychain` is not looked at: credentials are named by `auth`, and come from where secrets do."
        findings.warning(("keychain",), sentence)
    version = top.text("apiVersion")
    if version not in VERSIONS:
        top.wrong("apiVersion" if version else None, f"`apiVersion` is one of {', '.join(VERSIONS)}.")
    metadata = _metadata(top)
    workload = top.mapping("workload") or {}
    _check_workload(workload, findings)
    reader = _Reader(top, kinds, findings, link, metadata.plan_id)
    steps = reader.steps()
    playbook = reader.whole(steps)
    if findings.errors or playbook is None:
        return None
    return make_part(
        ExecutionPlan, metadata=metadata, params=workload, order=Order.ROUTED, steps=tuple(steps), playbook=playbook
    )


def _seconds(fields: Fields) -> float | None:
    if "timeout_s" not in fields:
        return None
    timeout = fields.duration("timeout_s", 1.0)
    if timeout <= 0:
        fields.wrong("timeout_s", "`timeout_s` must be longer than 0.")
    return timeout


def _refuse_gone(fields: Fields, data: dict[str, Any]) -> None:
    for name, sentence in GONE.items():
        if name in data:
            fields.wrong(name, sentence, on_key=True)


def _metadata(top: Fields) -> PlanMetadata:
    fields = top.part("metadata")
    if fields is None:
        if "metadata" not in top:
            top.wrong(None, "A playbook has `metadata` with a name.")
        return PlanMetadata(plan_id="playbook")
    name = identity(fields, "name") or identity(fields, "path")
    if not name:
        fields.wrong(None, "`metadata` has no name.")
    version = fields.raw("version")
    return make_part(
        PlanMetadata,
        plan_id=name or "playbook",
        plan_version="" if version is None else str(version),
        description=fields.text("description"),
    )


def _check_workload(workload: dict[str, Any], findings: Findings) -> None:
    for name in workload:
        if name == "execution_id":
            findings.warning(("workload", name), "The run's own `execution_id` is seen instead of this one.")
        elif name in RESERVED_NAMES:
            sentence = f"{name!r} means something else in expressions. Call this part of the workload otherwise."
            findings.error(("workload", name), PLAN, sentence, on_key=True)
    check_texts(workload, ("workload",), findings)
    known = workload_scope(workload, "").keys()
    for name, value in workload.items():
        for unknown in sorted(_mentioned(value) - known) if name != "execution_id" else ():
            sentence = f"There is no {unknown!r} here: a workload sees itself and `execution_id`."
            findings.error(("workload", name), EXPRESSION, sentence)
    for place, sentence in find_secrets(workload, ()):
        if _names_credential(workload, place):
            continue
        findings.error(("workload", *place), PLAN, sentence.replace("as {secret: NAME}", _WHERE_SECRETS))
    for place in _secret_refs(workload, ()):
        sentence = f"A workload is data, and so is this: no secret comes of it. Name it {_WHERE_SECRETS}."
        findings.error(("workload", *place), PLAN, sentence)


_WHERE_SECRETS = "where it is used: {secret: NAME} as an input of a task, or `auth: NAME`"


def _secret_refs(value: Any, place: Path) -> list[Path]:
    if is_secret_ref(value):
        return [place]
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    return [found for key, item in items for found in _secret_refs(item, (*place, key))]


def _mentioned(value: Any) -> frozenset[str]:
    try:
        return mentioned_names(value)
    except RunwrightError:
        return frozenset()  # what cannot be read has been refused


def _names_credential(workload: dict[str, Any], place: Path) -> bool:
    """Whether this is the name of a credential, for an `auth` to use: a word, and not what it stands for."""
    value: Any = workload
    for part in place:
        value = value[part]
    key = str(place[-1]).lower() if place else ""
    return (
        key.endswith("credential")
        and isinstance(value, str)
        and re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", value) is not None
    )


_OF_EXECUTORS = ("profile", "version", "requires")
"""What other servers read of an executor."""


def _step_names(workflow: Any) -> list[str]:
    steps = cast("list[Any]", workflow) if isinstance(workflow, list) else []
    return [str(cast("dict[str, Any]", step).get("step")) for step in steps if isinstance(step, dict)]


class _Reader:
    def __init__(
        self,
        top: Fields,
        kinds: Kinds,
        findings: Findings,
        link: Callable[[str], str] | None,
        plan_id: str,
    ) -> None:
        self._top = top
        self._findings = findings
        workbook = Workbook(top, findings, plan_id, self._step)
        self._tasks = TaskReader(kinds, findings, link, workbook)
        self._places: dict[str, Path] = {}
        self._targets: list[tuple[str, Path]] = []  # of arcs
        self._ends = ends_before(top.raw("workflow"))
        self._taken = {*(top.mapping("workload") or {}), *_step_names(top.raw("workflow"))}  # names in expressions
        executor = top.part("executor")
        if executor is not None:
            executor.refuse_unknown(("spec", *_OF_EXECUTORS), "The executor")
            executor.not_looked_at(*_OF_EXECUTORS)
        self._executor = None if executor is None else executor.part("spec")
        self._outer = Outer() if self._executor is None else self._of_executor(self._executor)

    def _of_executor(self, spec: Fields) -> Outer:
        policy = spec.part("policy")
        defaults = None if policy is None else policy.part("defaults")
        if policy is not None:
            policy.refuse_unknown(("defaults", "results"), "The policy of the executor")
            if "results" in policy:
                sentence = "`results` is not looked at: a task's `spec.result` says what becomes of its result."
                self._findings.warning((*policy.path, "results"), sentence)
        if defaults is not None:
            defaults.refuse_unknown(("timeout_s",), "`defaults`")
        return Outer(read_dispatch(spec), None if defaults is None else _seconds(defaults))

    def steps(self) -> list[Step]:
        given = self._top.raw("workflow")
        if not isinstance(given, list) or not given:
            self._top.wrong("workflow" if given else None, "A playbook has a `workflow`: a list of steps.")
            return []
        steps: list[Step] = []
        for number, data in enumerate(cast("list[Any]", given)):
            path: Path = ("workflow", number)
            if not isinstance(data, dict):
                self._findings.error(path, STEP, "A step is a mapping that begins with `step: name`.")
                continue
            step = self._step(cast("dict[str, Any]", data), path)
            if step is None:
                continue
            if step.step_id in self._places:
                self._findings.error((*path, "step"), PLAN, f"There is a step {step.step_id!r} already.")
            self._places.setdefault(step.step_id, path)
            steps.append(step)
        return steps

    def _step(self, data: dict[str, Any], path: Path) -> Step | None:
        fields = Fields(data, path, STEP, self._findings)
        name = fields.text("step")
        if not name:
            fields.wrong(None, "This step has no name: it begins with `step: name`.")
            return None
        check_name(fields, "step", name, "name")
        if name in NO_NAMES:
            fields.wrong("step", f"{name!r} means something else in expressions. Call the step otherwise.")
        _refuse_gone(fields, data)
        fields.refuse_unknown(STEP_FIELDS, "A step", but=GONE)
        if "tool" not in fields and "next" not in fields:
            fields.wrong(None, "A step has a `tool`, a `next`, or both.")
        settings = fields.part("spec")
        join, failure, timeout, admit = self._spec(name, settings)
        tasks = self._pipeline(fields, name, None if settings is None else read_dispatch(settings))
        loop = self._loop(fields)
        mode, arcs = self._next(fields, LOOP_DONE if loop is not None else STEP_DONE)
        set_ctx = read_settings(fields, "set", self._findings)
        for key in (*set_ctx.iter, *set_ctx.plain):
            fields.wrong("set", f"A step sets `ctx.{key}`; {key!r} belongs to a task.")
        route = make_part(
            Route,
            tasks=tasks,
            loop=loop,
            admit=admit,
            mode=mode,
            arcs=arcs,
            join=fields.choice("join", join),
            failure=failure,
            set_ctx=set_ctx.ctx,
        )
        return make_part(Step, step_id=name, kind=PIPELINE, timeout=timeout, route=route)

    def _spec(self, name: str, fields: Fields | None) -> tuple[Join, FailureMode, float | None, tuple[AdmitRule, ...]]:
        if fields is None:
            return Join.BARRIER, FailureMode.FAIL_FAST, None, ()
        fields.refuse_unknown(("policy", "join", "dispatch"), "The spec of a step")
        join = fields.choice("join", Join.BARRIER)
        policy = fields.part("policy")
        if policy is None:
            return join, FailureMode.FAIL_FAST, None, ()
        policy.refuse_unknown(("admit", "lifecycle", "failure"), "The policy of a step")
        failure = policy.part("failure")
        if failure is not None:
            failure.refuse_unknown(("mode",), "`failure`")
        mode = FailureMode.FAIL_FAST if failure is None else failure.choice("mode", FailureMode.FAIL_FAST)
        lifecycle = policy.part("lifecycle")
        timeout = None
        if lifecycle is not None:
            lifecycle.refuse_unknown(("timeout_s",), "`lifecycle`")
            timeout = _seconds(lifecycle)
        return join, mode, timeout, self._admit(name, policy)

    def _admit(self, name: str, policy: Fields) -> tuple[AdmitRule, ...]:
        admit = policy.part("admit")
        rules: Any = None if admit is None else admit.raw("rules")
        if admit is None:
            return ()
        if not isinstance(rules, list):
            admit.wrong("rules" if rules is not None else None, "`admit` has rules: a list of `when` and `then`.")
            return ()
        found: list[AdmitRule] = []
        ends = self._ends.get(name, set())
        end = next(iter(ends)) if len(ends) == 1 else None
        for number, rule in enumerate(cast("list[Any]", rules)):
            path = (*admit.path, "rules", number)
            when, then = read_condition(rule, path, self._findings)
            when = in_todays_words(when, end, (*path, "when"), self._findings)
            if when is None and number + 1 < len(rules):  # pyright: ignore[reportUnknownArgumentType]
                self._findings.error(path, STEP, ELSE_IS_LAST)
            allow = None if then is None else then.get("allow")
            if not isinstance(allow, bool):
                self._findings.error(path, STEP, "A rule of `admit` says `then: {allow: true}` or false.")
                continue
            found.append(AdmitRule(allow, when))
        return tuple(found)

    def _pipeline(self, fields: Fields, step: str, dispatch: dict[str, str] | None) -> tuple[Task, ...]:
        tool, path = fields.raw("tool"), (*fields.path, "tool")
        outer = Outer(dispatch or self._outer.dispatch, self._outer.timeout, read_args(fields))
        return () if tool is None else self._tasks.pipeline(tool, path, step, outer)

    def _loop(self, fields: Fields) -> PipelineLoop | None:
        loop = fields.part("loop")
        if loop is None:
            return None
        loop.refuse_unknown(("in", "iterator", "spec"), "A loop")
        items, iterator = loop.raw("in"), loop.text("iterator")
        if items is None:
            loop.wrong(None, "A loop has `in`: a list, or an expression that gives one.")
        elif isinstance(items, str):
            if not has_expression(items):
                loop.wrong("in", "`in` is a list, or an expression that gives one.")
        elif not isinstance(items, list):
            loop.wrong("in", "`in` is a list, or an expression that gives one.")
        check_texts(items, (*loop.path, "in"), self._findings)
        if not iterator:
            loop.wrong(None, "A loop has an `iterator`: the name of each item, as in iter.name.")
        elif not iterator.isidentifier() or iterator in ("index", "parent"):
            loop.wrong("iterator", "The iterator is a plain name, and neither `index` nor `parent`.")
        elif iterator in self._taken:
            sentence = f"{iterator!r} alone is part of the workload, or a step. Write `iter.{iterator}` for the item."
            self._findings.warning((*loop.path, "iterator"), sentence)
        spec = loop.part("spec")
        mode, most = "sequential", 1
        if spec is not None:
            spec.refuse_unknown(("mode", "max_in_flight", "policy"), "The spec of a loop")
            if "policy" in spec:
                sentence = "`policy` is not looked at: a task's `spec.dispatch` says where it runs."
                self._findings.warning((*spec.path, "policy"), sentence)
            mode = spec.text("mode") or "sequential"
            if mode not in ("sequential", "parallel"):
                spec.wrong("mode", "`mode` is sequential or parallel.")
            most = self._in_flight(spec)
        return make_part(
            PipelineLoop, items=items, iterator=iterator or "item", parallel=mode == "parallel", max_in_flight=most
        )

    def _in_flight(self, spec: Fields) -> int | str:
        given = spec.raw("max_in_flight")
        if isinstance(given, str) and has_expression(given):
            check_texts(given, (*spec.path, "max_in_flight"), self._findings)
            return given
        return spec.whole("max_in_flight", 16, 1, 10_000)

    def _next(self, fields: Fields, end: str) -> tuple[Mode, tuple[Arc, ...]]:
        given = fields.raw("next")
        path: Path = (*fields.path, "next")
        mode, arcs = Mode.EXCLUSIVE, given
        if isinstance(given, str):
            arcs = [{"step": given}]
        elif isinstance(given, dict):
            part = fields.part("next")
            assert part is not None
            part.refuse_unknown(("spec", "arcs"), "`next`")
            spec = part.part("spec")
            if spec is not None:
                spec.refuse_unknown(("mode", "on_no_match"), "The spec of `next`")
                if spec.raw("on_no_match") not in (None, "quiet"):
                    spec.wrong("on_no_match", "`on_no_match` is quiet; an error is `executor.spec.no_next_is_error`.")
                mode = spec.choice("mode", Mode.EXCLUSIVE)
            arcs, path = part.raw("arcs"), (*path, "arcs")
        if arcs is None:
            return mode, ()
        if not isinstance(arcs, list):
            self._findings.error(path, STEP, "`next` has arcs: a list of `{step, when, args}`.")
            return mode, ()
        found = [self._arc(arc, (*path, at), end) for at, arc in enumerate(cast("list[Any]", arcs))]
        return mode, tuple(arc for arc in found if arc is not None)

    def _arc(self, given: Any, path: Path, end: str) -> Arc | None:
        if isinstance(given, str):
            given = {"step": given}
        if not isinstance(given, dict) or not isinstance(given.get("step"), str):  # pyright: ignore[reportUnknownMemberType]
            self._findings.error(path, STEP, "An arc says where it leads: `step: name`.")
            return None
        fields = Fields(cast("dict[str, Any]", given), path, STEP, self._findings)
        fields.refuse_unknown(("step", "when", "args", "set", "input"), "An arc")
        self._targets.append((str(fields.raw("step")), path))
        given_when = in_todays_words(fields.raw("when"), end, (*path, "when"), self._findings)
        when = checked_condition(given_when, (*path, "when"), self._findings)
        args: dict[str, Any] = {}
        set_ctx: dict[str, Any] = {}
        for name in ("args", "input", "set"):
            for key, value in (fields.mapping(name) or {}).items():
                check_texts(value, (*path, name, key), self._findings)
                scope, dot, rest = key.partition(".")
                if name == "set" and scope == "ctx" and rest and "." not in rest:
                    set_ctx[rest] = value
                elif name == "set" and scope == "iter" and rest:
                    fields.wrong(name, f"An arc sets `ctx.name` or an argument; {key!r} belongs to an iteration.")
                elif name == "set" and dot and (scope not in ("args", "step") or not rest):
                    fields.wrong(name, f"An arc sets `ctx.name` or an argument, and not {key!r}.")
                else:
                    args[rest if scope in ("args", "step") and rest else key] = value
        return make_part(Arc, step=str(fields.raw("step")), when=when, args=args, set_ctx=set_ctx)

    def whole(self, steps: list[Step]) -> Playbook | None:
        """What holds for the playbook as a whole, once all of its steps are known."""
        if not steps:
            return None
        self._tasks.check_unused()
        self._check_targets()
        entry, final, strict = steps[0].step_id, None, False
        if (spec := self._executor) is not None:
            known = ("entry_step", "final_step", "no_next_is_error", "dispatch", "policy")
            spec.refuse_unknown(known, "The spec of the executor")
            entry = self._named(spec, "entry_step") or entry
            final = self._named(spec, "final_step")
            if any(step.step_id == final and step.route is not None and step.route.arcs for step in steps):
                spec.wrong("final_step", f"The final step is the last: {final!r} has a `next`, which leads on from it.")
            strict = spec.flag("no_next_is_error", False)
        self._warn_unreached(steps, entry, final)
        ctx = self._top.mapping("ctx") or {}
        check_texts(ctx, ("ctx",), self._findings)
        return make_part(Playbook, entry=entry, final_step=final, no_next_is_error=strict, ctx=ctx)

    def _named(self, spec: Fields, name: str) -> str | None:
        step = spec.text(name)
        if step is not None and step not in self._places:
            spec.wrong(name, f"There is no step {step!r}.{did_you_mean(step, self._places)}")
        return step

    def _check_targets(self) -> None:
        for name, path in self._targets:
            if name not in self._places:
                advice = did_you_mean(name, self._places)
                self._findings.error(path, PLAN, f"There is no step {name!r} for this arc.{advice}")

    def _warn_unreached(self, steps: list[Step], entry: str, final: str | None) -> None:
        arcs = {step.step_id: [arc.step for arc in step.route.arcs] for step in steps if step.route is not None}
        reached: set[str] = set()
        frontier = [name for name in (entry, final) if name is not None]
        while frontier:
            name = frontier.pop()
            if name not in reached:
                reached.add(name)
                frontier += arcs.get(name, [])
        lost = [step.step_id for step in steps if step.step_id not in reached]
        if lost:
            self._findings.warning(self._places[lost[0]], f"No arc leads to {listed(lost)}: they will never run.")
