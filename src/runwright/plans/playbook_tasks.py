"""The tasks of a playbook: pipelines of them, their labels, policies and limits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step
from runwright.contract.playbook import HTTP, HTTP_IDLE, Do, Keeping, Rule, Task
from runwright.core.playscope import NO_NAMES

from .fields import Fields
from .inputs import misfits
from .kinds import Kinds
from .known import SUB_PLAN
from .parts import make_part
from .playbook_keeping import read_keeping
from .playbook_kinds import COMMON, GONE, KINDS, OF_A_WHOLE, KindReader, Own
from .playbook_rules import Settings, check_texts, read_rules, read_settings
from .playbook_workbook import Workbook
from .problems import STEP, Findings, Path, did_you_mean
from .secrets import find_secrets
from .steps import check_name, read_dispatch

FAILED = "{{ outcome.status == 'error' }}"


def read_args(fields: Fields) -> dict[str, Any]:
    return {**(fields.mapping("args") or {}), **(fields.mapping("input") or {})}


class Outer(msgspec.Struct, frozen=True):
    """What the step or the playbook around them says for tasks that do not say it themselves."""

    dispatch: dict[str, str] | None = None
    timeout: float | None = None
    args: dict[str, Any] = {}


class TaskReader:
    def __init__(self, kinds: Kinds, findings: Findings, link: Callable[[str], str] | None, workbook: Workbook) -> None:
        self._kinds = kinds
        self._findings = findings
        self._workbook = workbook
        self._outer = Outer()
        self._read = KindReader(findings, link).read

    def pipeline(self, tool: Any, path: Path, step: str, outer: Outer) -> tuple[Task, ...]:
        """One tool, or a list: each with `name`, or under its label."""
        before, self._outer = self._outer, outer
        try:
            return self._pipeline(tool, path, step)
        finally:
            self._outer = before

    def _pipeline(self, tool: Any, path: Path, step: str) -> tuple[Task, ...]:
        given: list[tuple[str | None, Any, Path]] = []
        if isinstance(tool, dict):
            given.append((None, cast("dict[str, Any]", tool), path))
        elif isinstance(tool, list) and tool:
            given += [self._labelled(item, (*path, at)) for at, item in enumerate(cast("list[Any]", tool))]
        else:
            self._findings.error(path, STEP, "`tool` is a mapping with a `kind`, or a list of such.")
        labels = [self._label(label, data, step, at, len(given)) for at, (label, data, _) in enumerate(given, 1)]
        tasks: list[Task] = []
        for label, (_, data, where) in zip(labels, given, strict=True):
            if labels.count(label) > 1:
                self._findings.error(where, STEP, f"Two tasks of this pipeline are called {label!r}.")
            task = self._task(label, data, where, labels)
            if task is not None:
                tasks.append(task)
        return tuple(tasks)

    def _labelled(self, item: Any, path: Path) -> tuple[str | None, Any, Path]:
        """`{kind: ..., ...}`, or `label: {kind: ..., ...}`."""
        if isinstance(item, dict):
            given = cast("dict[str, Any]", item)
            if "kind" not in given and len(given) == 1:
                label, data = next(iter(given.items()))
                return label, data, (*path, label)
        return None, cast("Any", item), path

    def _label(self, label: str | None, data: Any, step: str, at: int, count: int) -> str:
        given = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        named = given.get("name")
        if given.get("kind") == "workbook" and given.get("task") is None and count == 1:
            named = None  # there it is the task of the workbook that is named
        found = label or given.get("label") or named
        return found if isinstance(found, str) and found else (step if count == 1 else f"task_{at}")

    def _task(self, label: str, data: Any, path: Path, labels: Collection[str]) -> Task | None:
        if not isinstance(data, dict):
            self._findings.error(path, STEP, "A task is a mapping with a `kind`.")
            return None
        fields = Fields(cast("dict[str, Any]", data), path, STEP, self._findings)
        check_name(fields, "name" if "name" in fields else None, label, "label")
        for name in ("name", "label"):
            fields.text(name)
        if label in NO_NAMES:
            fields.wrong(None, f"{label!r} means something else in expressions. Call the task otherwise.")
        for name in GONE:
            if name in fields:
                why = "a task's policy says what its outcome means"
                if name == "script":
                    why = "what a task runs is written in it, as `code`, `query` or `command`"
                fields.wrong(name, f"`{name}` is gone: {why}.", on_key=True)
        kind = fields.text("kind")
        if kind not in KINDS:
            fields.wrong("kind" if kind else None, _no_kind(kind))
            return None
        return self._known(label, kind, fields, labels)

    def _known(self, label: str, kind: str, fields: Fields, labels: Collection[str]) -> Task | None:
        if kind == "workbook":
            return self._of_workbook(label, fields, labels)
        args = self._args(fields)
        own = self._read(kind, fields, args)
        return None if own is None else self._made(label, own, fields, labels)

    def _made(self, label: str, own: Own, fields: Fields, labels: Collection[str]) -> Task:
        check_texts(own.inputs, fields.path, self._findings)
        for place, sentence in find_secrets(own.inputs if own.looked_at is None else own.looked_at, ()):
            self._findings.error((*fields.path, *place), STEP, sentence)
        spec = fields.part("spec")
        rules, timeout, keeping = self._spec(spec, labels)
        dispatch = self._place(spec)
        timeout = timeout or fields.timeout() or (self._outer.timeout if own.tool != SUB_PLAN else None)
        if own.tool == HTTP and timeout is not None and timeout > HTTP_IDLE:
            own.inputs["idleTimeout"] = timeout  # who allows it that long waits that long for an answer
        fields.not_looked_at("assert")
        rules = _with_settings(rules, read_settings(fields, "set", self._findings))
        self._check(own, fields, timeout)
        return make_part(
            Task,
            label=label,
            kind=own.tool,
            inputs=own.inputs,
            timeout=timeout,
            rules=rules,
            result=keeping,
            dispatch=dispatch,
        )

    def _place(self, spec: Fields | None) -> dict[str, str] | None:
        return (None if spec is None else read_dispatch(spec)) or self._outer.dispatch

    def _of_workbook(self, label: str, fields: Fields, labels: Collection[str]) -> Task | None:
        """A task that is written elsewhere: what is said here comes on top."""
        name = fields.text("task") or fields.text("name")
        if not name or name not in self._workbook.tools:
            advice = "" if not name else did_you_mean(name, self._workbook.tools)
            fields.wrong("name" if name else None, f"The workbook has no task {name!r}.{advice}")
            return None
        self._workbook.used.add(name)
        if name in self._workbook.wholes:
            fields.refuse_unknown(OF_A_WHOLE, f"A task that is the workbook's {name!r}")
            inputs = self._workbook.as_playbook(name, self._args(fields), self._place(fields.part("spec")))
            return None if inputs is None else self._made(label, Own(SUB_PLAN, inputs), fields, labels)
        fields.refuse_unknown((*COMMON, "task"), "A task of kind workbook", GONE)
        there, path = self._workbook.tools[name]
        if there.get("kind") in ("workbook", None):
            self._findings.error(path, STEP, "A task of the workbook has a kind of its own.")
            return None
        here = {key: fields.raw(key) for key in ("set", "auth", "credential") if key in fields}
        parts = [
            there.get("spec"),
            {"timeout": fields.raw("timeout")} if "timeout" in fields else None,
            fields.raw("spec"),
        ]
        here["spec"] = _laid_over([part for part in parts if part is not None])
        own = Fields(there, path, STEP, self._findings)
        merged: dict[str, Any] = {**there, **here, "args": {**read_args(own), **read_args(fields)}}
        merged.pop("input", None)
        merged.pop("name", None)
        inner = Fields(merged, path, STEP, self._findings)
        if there["kind"] not in KINDS:
            inner.wrong("kind", _no_kind(str(there["kind"])))
            return None
        return self._known(label, str(there["kind"]), inner, labels)

    def check_unused(self) -> None:
        """Find what is wrong with tasks of the workbook that nothing uses, too."""
        parts = list(self._findings.parts)
        for name, (_, path) in self._workbook.tools.items():
            if name not in self._workbook.used:
                use = Fields({"kind": "workbook", "task": name}, path, STEP, self._findings)
                self._of_workbook(name, use, [name])
        self._findings.parts[:] = parts  # they are no part of the plan

    def _args(self, fields: Fields) -> dict[str, Any]:
        return {**self._outer.args, **read_args(fields)}

    def _spec(
        self, spec: Fields | None, labels: Collection[str]
    ) -> tuple[tuple[Rule, ...] | None, float | None, Keeping]:
        if spec is None:
            return None, None, Keeping()
        spec.refuse_unknown(("timeout", "policy", "result", "dispatch"), "The spec of a task")
        rules = None
        if "policy" in spec:
            rules = read_rules(spec.raw("policy"), (*spec.path, "policy"), labels, self._findings)
        return rules, self._timeout(spec), read_keeping(spec.part("result"), labels, self._findings)

    def _timeout(self, spec: Fields) -> float | None:
        """How long, or a mapping with `connect`, `read` and the like: all of these together."""
        given = spec.raw("timeout")
        if not isinstance(given, dict):
            return spec.timeout()
        parts = Fields(cast("dict[str, Any]", given), (*spec.path, "timeout"), STEP, self._findings)
        times = {name: parts.duration(name, 1.0) for name in cast("dict[str, Any]", given)}
        for name, seconds in times.items():
            if seconds <= 0:
                parts.wrong(name, f"`{name}` must be longer than 0.")
        return sum(times.values()) or None

    def _check(self, own: Own, fields: Fields, timeout: float | None) -> None:
        """Hold the inputs against what the tool takes."""
        tool = self._kinds.get(own.tool)
        if tool is None:
            fields.wrong("kind", f"This installation has no tool for {fields.raw('kind')!r}.")
            return
        given = {name: value for name, value in own.inputs.items() if value is not None}
        wrong = misfits(str(fields.raw("kind")), tool, given)
        for place, sentence, _ in wrong:
            fields.wrong(str(place[0]) if place and str(place[0]) in fields else None, sentence)
        step = Step(step_id="task", kind=own.tool, inputs=given, timeout=timeout)
        if not wrong and (trouble := tool.check(given, step)) is not None:
            fields.wrong(None, trouble)


def _no_kind(kind: str | None) -> str:
    known = f"There is no kind {kind!r}.{did_you_mean(kind, KINDS)}" if kind else "A task has a `kind`:"
    return f"{known} It is one of {', '.join(KINDS)}."


def _laid_over(parts: list[Any]) -> Any:
    """What is said nearer wins, and the rest holds. What is no mapping is left for others to refuse."""
    if not all(isinstance(part, dict) for part in parts):
        return next(part for part in parts if not isinstance(part, dict))
    return {name: value for part in parts for name, value in part.items()}


def _with_settings(rules: tuple[Rule, ...] | None, settings: Settings) -> tuple[Rule, ...] | None:
    """What a task sets whenever the pipeline goes on after it."""
    if not settings:
        return rules
    ctx, own = settings.ctx, {**settings.plain, **settings.iter}
    if rules is None:
        return (Rule(when=FAILED, do=Do.FAIL), Rule(do=Do.CONTINUE, set_ctx=ctx, set_iter=own))
    merged = tuple(
        rule
        if rule.do in (Do.RETRY, Do.FAIL)
        else msgspec.structs.replace(rule, set_ctx={**ctx, **rule.set_ctx}, set_iter={**own, **rule.set_iter})
        for rule in rules
    )
    if any(rule.when is None for rule in rules):
        return merged
    return (*merged, Rule(do=Do.CONTINUE, set_ctx=ctx, set_iter=own))
