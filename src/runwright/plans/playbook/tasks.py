"""Tasks of a playbook: pipelines, labels, policies, timeouts and task queues."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, cast

import msgspec

from runwright.contract.plan import Step
from runwright.contract.plan_struct import make_canonical
from runwright.contract.playbook import HTTP, HTTP_IDLE_TIMEOUT, PolicyAction, PolicyRule, ResultPolicy, Task
from runwright.core.playbook.scope import NO_NAMES
from runwright.plans.field_reader import FieldReader
from runwright.plans.input_checks import ToolsByKind, check_inputs, code_of
from runwright.plans.problems import INVALID_STEP, DocumentPath, ProblemCollector, did_you_mean
from runwright.plans.registry import SUB_PLAN
from runwright.plans.secret_refs import find_secret_values
from runwright.plans.steps import check_entity_name, read_dispatch

from .policies import Assignments, check_expressions, read_assignments, read_rules
from .result_spec import read_result_policy
from .task_kinds import COMMON_FIELDS, REMOVED_FIELDS, SUB_PLAYBOOK_FIELDS, TASK_KINDS, TaskKindReader, ToolInputs
from .workbook import Workbook

FAILED = "{{ outcome.status == 'error' }}"


def read_args(fields: FieldReader) -> dict[str, Any]:
    return {**(fields.mapping("args") or {}), **(fields.mapping("input") or {})}


class TaskDefaults(msgspec.Struct, frozen=True):
    """Values of the enclosing step or playbook for tasks that do not set their own."""

    dispatch: dict[str, str] | None = None
    timeout: float | None = None
    args: dict[str, Any] = {}


class _TaskItem(NamedTuple):
    """A task in a document, before it is parsed."""

    label: str | None
    data: Any
    path: DocumentPath

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the task; empty if it is not a mapping."""
        data: Any = self.data
        return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


class _TaskSpec(NamedTuple):
    rules: tuple[PolicyRule, ...] | None = None
    timeout: float | None = None
    result: ResultPolicy = ResultPolicy()


class TaskReader:
    def __init__(
        self,
        tools: ToolsByKind,
        problems: ProblemCollector,
        link: Callable[[str], str] | None,
        workbook: Workbook,
    ) -> None:
        self._tools = tools
        self._problems = problems
        self._workbook = workbook
        self._defaults = TaskDefaults()
        self._kind_reader = TaskKindReader(problems, link)

    def pipeline(self, tool: Any, path: DocumentPath, step: str, defaults: TaskDefaults) -> tuple[Task, ...]:
        """Read the `tool` of a step: one task, or a list of tasks with `name`, or under their labels."""
        # Reading a task may read a sub-playbook of the workbook, whose pipeline has other defaults.
        outer, self._defaults = self._defaults, defaults
        try:
            return self._pipeline(tool, path, step)
        finally:
            self._defaults = outer

    def _pipeline(self, tool: Any, path: DocumentPath, step: str) -> tuple[Task, ...]:
        items: list[_TaskItem] = []
        if isinstance(tool, dict):
            items.append(_TaskItem(None, cast("dict[str, Any]", tool), path))
        elif isinstance(tool, list) and tool:
            items += [_task_item(item, (*path, index)) for index, item in enumerate(cast("list[Any]", tool))]
        else:
            self._problems.error(path, INVALID_STEP, "`tool` must be a mapping with a `kind`, or a list of such.")
        labels = [_task_label(item, step, number, len(items)) for number, item in enumerate(items, 1)]
        tasks: list[Task] = []
        for label, item in zip(labels, items, strict=True):
            if labels.count(label) > 1:
                self._problems.error(item.path, INVALID_STEP, f"Duplicate task {label!r} in this pipeline.")
            task = self._task(label, item.data, item.path, labels)
            if task is not None:
                tasks.append(task)
        return tuple(tasks)

    def _task(self, label: str, data: Any, path: DocumentPath, labels: Collection[str]) -> Task | None:
        if not isinstance(data, dict):
            self._problems.error(path, INVALID_STEP, "A task must be a mapping with a `kind`.")
            return None
        fields = FieldReader(cast("dict[str, Any]", data), path, INVALID_STEP, self._problems)
        check_entity_name(fields, "name" if "name" in fields else None, label, "label")
        for name in ("name", "label"):
            fields.text(name)
        if label in NO_NAMES:
            fields.error(None, f"The name {label!r} is reserved in expressions. Rename the task.")
        for name in REMOVED_FIELDS:
            if name in fields:
                advice = "use the task's policy (spec.policy.rules)"
                if name == "script":
                    advice = "write what the task runs in `code`, `query` or `command`"
                fields.error(name, f"`{name}` is no longer supported: {advice}.", on_key=True)
        kind = fields.text("kind")
        if kind not in TASK_KINDS:
            fields.error("kind" if kind else None, _unknown_kind(kind))
            return None
        return self._task_of_kind(label, kind, fields, labels)

    def _task_of_kind(self, label: str, kind: str, fields: FieldReader, labels: Collection[str]) -> Task | None:
        if kind == "workbook":
            return self._workbook_task(label, fields, labels)
        inputs = self._kind_reader.read(kind, fields, self._args(fields))
        return None if inputs is None else self._create_task(label, inputs, fields, labels)

    def _create_task(self, label: str, inputs: ToolInputs, fields: FieldReader, labels: Collection[str]) -> Task:
        check_expressions(inputs.inputs, fields.path, self._problems)
        checked = inputs.inputs if inputs.secret_check is None else inputs.secret_check
        for path, sentence in find_secret_values(checked, ()):
            self._problems.error((*fields.path, *path), INVALID_STEP, sentence)
        spec_fields = fields.nested("spec")
        spec = self._spec(spec_fields, labels)
        dispatch = self._dispatch(spec_fields)
        default_timeout = self._defaults.timeout if inputs.tool != SUB_PLAN else None
        timeout = spec.timeout or fields.timeout() or default_timeout
        if inputs.tool == HTTP and timeout is not None and timeout > HTTP_IDLE_TIMEOUT:
            inputs.inputs["idleTimeout"] = timeout  # a task with a long timeout also waits that long for a response
        fields.warn_ignored("assert")
        rules = _add_assignments(spec.rules, read_assignments(fields, "set", self._problems))
        self._check_inputs(inputs, fields, timeout)
        return make_canonical(
            Task,
            label=label,
            kind=inputs.tool,
            inputs=inputs.inputs,
            timeout=timeout,
            rules=rules,
            result=spec.result,
            dispatch=dispatch,
        )

    def _dispatch(self, spec: FieldReader | None) -> dict[str, str] | None:
        return (None if spec is None else read_dispatch(spec)) or self._defaults.dispatch

    def _workbook_task(self, label: str, fields: FieldReader, labels: Collection[str]) -> Task | None:
        """Read a use of a workbook task. Fields of the use override those of the workbook."""
        name = fields.text("task") or fields.text("name")
        if not name or name not in self._workbook.tasks:
            advice = "" if not name else did_you_mean(name, self._workbook.tasks)
            fields.error("name" if name else None, f"Unknown task {name!r} of the workbook.{advice}")
            return None
        self._workbook.used.add(name)
        if name in self._workbook.sub_playbooks:
            fields.reject_unknown(SUB_PLAYBOOK_FIELDS, f"a use of the workbook task {name!r}")
            dispatch = self._dispatch(fields.nested("spec"))
            inputs = self._workbook.sub_playbook_inputs(name, self._args(fields), dispatch)
            return None if inputs is None else self._create_task(label, ToolInputs(SUB_PLAN, inputs), fields, labels)
        fields.reject_unknown((*COMMON_FIELDS, "task"), "a task of kind workbook", REMOVED_FIELDS)
        definition, path = self._workbook.tasks[name]
        kind = definition.get("kind")
        if kind in ("workbook", None):
            self._problems.error(path, INVALID_STEP, "A task of the workbook must have a kind other than workbook.")
            return None
        merged = FieldReader(self._merge(definition, path, fields), path, INVALID_STEP, self._problems)
        if kind not in TASK_KINDS:
            merged.error("kind", _unknown_kind(str(kind)))
            return None
        return self._task_of_kind(label, str(kind), merged, labels)

    def _merge(self, definition: dict[str, Any], path: DocumentPath, use: FieldReader) -> dict[str, Any]:
        """Return the fields of a workbook task, overridden by those of its use."""
        overrides = {key: use.raw(key) for key in ("set", "auth", "credential") if key in use}
        specs = [
            definition.get("spec"),
            {"timeout": use.raw("timeout")} if "timeout" in use else None,
            use.raw("spec"),
        ]
        overrides["spec"] = _overlay([spec for spec in specs if spec is not None])
        defined = FieldReader(definition, path, INVALID_STEP, self._problems)
        merged: dict[str, Any] = {**definition, **overrides, "args": {**read_args(defined), **read_args(use)}}
        merged.pop("input", None)
        merged.pop("name", None)
        return merged

    def check_unused(self) -> None:
        """Report the problems of workbook tasks that no task uses, too."""
        sub_plans = list(self._problems.sub_plans)
        for name, (_, path) in self._workbook.tasks.items():
            if name not in self._workbook.used:
                use = FieldReader({"kind": "workbook", "task": name}, path, INVALID_STEP, self._problems)
                self._workbook_task(name, use, [name])
        self._problems.sub_plans[:] = sub_plans  # unused tasks are not part of the plan

    def _args(self, fields: FieldReader) -> dict[str, Any]:
        return {**self._defaults.args, **read_args(fields)}

    def _spec(self, spec: FieldReader | None, labels: Collection[str]) -> _TaskSpec:
        if spec is None:
            return _TaskSpec()
        spec.reject_unknown(("timeout", "policy", "result", "dispatch"), "the spec of a task")
        rules = None
        if "policy" in spec:
            rules = read_rules(spec.raw("policy"), (*spec.path, "policy"), labels, self._problems)
        return _TaskSpec(rules, self._timeout(spec), read_result_policy(spec.nested("result"), labels, self._problems))

    def _timeout(self, spec: FieldReader) -> float | None:
        """Read a timeout: a duration, or a mapping with `connect`, `read` and the like, whose sum is the timeout."""
        timeout = spec.raw("timeout")
        if not isinstance(timeout, dict):
            return spec.timeout()
        parts = FieldReader(cast("dict[str, Any]", timeout), (*spec.path, "timeout"), INVALID_STEP, self._problems)
        durations = {name: parts.duration(name, 1.0) for name in cast("dict[str, Any]", timeout)}
        for name, seconds in durations.items():
            if seconds <= 0:
                parts.error(name, f"`{name}` must be longer than 0.")
        return sum(durations.values()) or None

    def _check_inputs(self, inputs: ToolInputs, fields: FieldReader, timeout: float | None) -> None:
        """Validate the inputs against the input struct of the tool, then with the tool's own check."""
        tool = self._tools.get(inputs.tool)
        if tool is None:
            fields.error("kind", f"This installation has no tool for {fields.raw('kind')!r}.")
            return
        values = {name: value for name, value in inputs.inputs.items() if value is not None}
        found = check_inputs(str(fields.raw("kind")), tool, values)
        for each in found:
            name = str(each.path[0]) if each.path else ""
            fields.error(name if name in fields else None, each.sentence)
        step = Step(step_id="task", kind=inputs.tool, inputs=values, timeout=timeout)
        if not found and (sentence := tool.check(values, step)) is not None:
            self._problems.error(fields.path, code_of(sentence), sentence)


def _task_item(item: Any, path: DocumentPath) -> _TaskItem:
    """Read an item of a pipeline: `{kind: ..., ...}`, or `label: {kind: ..., ...}`."""
    if isinstance(item, dict):
        data = cast("dict[str, Any]", item)
        if "kind" not in data and len(data) == 1:
            label, task = next(iter(data.items()))
            return _TaskItem(label, task, (*path, label))
    return _TaskItem(None, cast("Any", item), path)


def _task_label(item: _TaskItem, step: str, number: int, count: int) -> str:
    """Return the label of a task; by default the step's name, or `task_N` if there are several tasks."""
    data = item.fields
    name = data.get("name")
    if data.get("kind") == "workbook" and data.get("task") is None and count == 1:
        name = None  # here `name` is the name of the workbook task
    label = item.label or data.get("label") or name
    return label if isinstance(label, str) and label else (step if count == 1 else f"task_{number}")


def _unknown_kind(kind: str | None) -> str:
    if not kind:
        return f"A task must have a `kind`. Use one of {', '.join(TASK_KINDS)}."
    return f"Unknown kind {kind!r}.{did_you_mean(kind, TASK_KINDS)} Use one of {', '.join(TASK_KINDS)}."


def _overlay(specs: list[Any]) -> Any:
    """Merge mappings, later ones over earlier ones. If one is not a mapping, return it: its reader reports it."""
    if not all(isinstance(spec, dict) for spec in specs):
        return next(spec for spec in specs if not isinstance(spec, dict))
    return {name: value for spec in specs for name, value in spec.items()}


def _add_assignments(rules: tuple[PolicyRule, ...] | None, assignments: Assignments) -> tuple[PolicyRule, ...] | None:
    """Add the `set` of a task to all rules after which the pipeline does not retry or fail."""
    if not assignments:
        return rules
    set_ctx, set_iter = assignments.ctx, {**assignments.plain, **assignments.iter}
    otherwise = PolicyRule(do=PolicyAction.CONTINUE, set_ctx=set_ctx, set_iter=set_iter)
    if rules is None:
        return (PolicyRule(when=FAILED, do=PolicyAction.FAIL), otherwise)
    merged = tuple(
        rule
        if rule.do in (PolicyAction.RETRY, PolicyAction.FAIL)
        else msgspec.structs.replace(rule, set_ctx={**set_ctx, **rule.set_ctx}, set_iter={**set_iter, **rule.set_iter})
        for rule in rules
    )
    if any(rule.when is None for rule in rules):
        return merged
    return (*merged, otherwise)
