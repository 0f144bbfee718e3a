"""Workbook of a playbook: tasks that are written once and used by name.

A task with a loop or several tools becomes a playbook of its own, and each use of it a child run: its workload is the
workload of the parent overlaid with `args`, and a loop in it sees the iteration that uses it as `iter.parent`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from runwright.contract.plan import ExecutionPlan, Order, PlanMetadata, Step
from runwright.contract.plan_struct import make_canonical
from runwright.contract.playbook import Playbook
from runwright.plans.field_reader import FieldReader
from runwright.plans.problems import INVALID_PLAN, DocumentPath, ProblemCollector
from runwright.plans.registry import make_plan_ref

WORKBOOK_TASK_FIELDS = ("name", "desc", "description", "tool", "loop", "spec", "args", "input", "assert")
MAX_DEPTH = 20
"""Maximum depth of workbook tasks that use each other."""

StepParser = Callable[[dict[str, Any], DocumentPath], Step | None]


class WorkbookTask(NamedTuple):
    data: dict[str, Any]
    path: DocumentPath


class Workbook:
    def __init__(self, top: FieldReader, problems: ProblemCollector, plan_id: str, read_step: StepParser) -> None:
        self._problems = problems
        self._plan_id = plan_id
        self._read_step = read_step
        self._reading: list[str] = []  # tasks that are being read, each used by the one before
        self._refs: dict[tuple[str, str | None], str | None] = {}  # of generated playbooks, by name and queue
        self.tasks: dict[str, WorkbookTask] = {}
        self.used: set[str] = set()
        self.sub_playbooks: set[str] = set()
        """Tasks with a loop or several tools."""
        for name, value, path in self._items(top):
            self._add(name, value, path)

    def _items(self, top: FieldReader) -> list[tuple[Any, Any, DocumentPath]]:
        """Return name, value and path of each task in a list of `{name, tool}` or in a mapping."""
        data = top.raw("workbook")
        if isinstance(data, dict):
            return [(name, value, ("workbook", name)) for name, value in cast("dict[str, Any]", data).items()]
        if isinstance(data, list):
            return [
                (cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None, item, ("workbook", at))
                for at, item in enumerate(cast("list[Any]", data))
            ]
        if data is not None:
            top.error("workbook", "`workbook` must be a list of named tasks, or a mapping.")
        return []

    def _add(self, name: Any, value: Any, path: DocumentPath) -> None:
        item = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        tool: Any = item.get("tool", item)
        if not isinstance(name, str) or not isinstance(tool, dict | list) or not tool:
            self._problems.error(path, INVALID_PLAN, "A task of the workbook must have a name and a tool.")
            return
        if name in self.tasks:
            self._problems.error(path, INVALID_PLAN, f"Duplicate task {name!r} in the workbook.")
        if "tool" in item:
            fields = FieldReader(item, path, INVALID_PLAN, self._problems)
            fields.reject_unknown(WORKBOOK_TASK_FIELDS, "a task of the workbook")
        if "assert" in item and "tool" in item:
            self._problems.warning((*path, "assert"), "Unknown field `assert` is ignored.")
        if isinstance(tool, list) or "loop" in item:
            self.sub_playbooks.add(name)
            self.tasks[name] = WorkbookTask(item, path)
        elif "tool" in item:
            tool_fields = cast("dict[str, Any]", tool)
            inherited = {
                key: item[key] for key in ("args", "input", "spec") if item.get(key) and not tool_fields.get(key)
            }
            self.tasks[name] = WorkbookTask({**tool_fields, **inherited}, (*path, "tool"))
        else:
            self.tasks[name] = WorkbookTask(item, path)

    def sub_playbook_inputs(
        self, name: str, args: dict[str, Any], dispatch: dict[str, str] | None
    ) -> dict[str, Any] | None:
        """Return the inputs of a task that runs this task as a child run; None if it is invalid."""
        item, path = self.tasks[name]
        key = (name, None if dispatch is None else dispatch["queue"])
        if key not in self._refs:
            self._refs[key] = self._create_sub_playbook(name, item, path, dispatch)
        ref = self._refs[key]
        if ref is None:
            return None
        fields = FieldReader(item, path, INVALID_PLAN, self._problems)
        params = {**(fields.mapping("args") or {}), **(fields.mapping("input") or {}), **args}
        return {"ref": ref, "params": params, "inherit": True}

    def _create_sub_playbook(
        self, name: str, item: dict[str, Any], path: DocumentPath, dispatch: dict[str, str] | None
    ) -> str | None:
        """Generate a playbook with one step and return a reference to it; None if it is invalid."""
        if name in self._reading or len(self._reading) >= MAX_DEPTH:
            chain = " -> ".join((*self._reading, name))
            problem = "Dependency cycle" if name in self._reading else f"Nested more than {MAX_DEPTH} levels deep"
            self._problems.error(path, INVALID_PLAN, f"{problem} in the workbook: {chain}.")
            return None
        errors_before = len(self._problems.errors)
        data: dict[str, Any] = {"step": name, **{key: item[key] for key in ("tool", "loop", "spec") if key in item}}
        spec: Any = data.get("spec", {})
        if dispatch is not None and isinstance(spec, dict):
            data["spec"] = {"dispatch": dispatch, **cast("dict[str, Any]", spec)}
        self._reading.append(name)
        step = self._read_step(data, path)
        self._reading.pop()
        if step is None or len(self._problems.errors) > errors_before:
            return None
        plan = make_canonical(
            ExecutionPlan,
            metadata=PlanMetadata(plan_id=f"{self._plan_id}.{name}"),
            order=Order.ROUTED,
            steps=(step,),
            playbook=Playbook(entry=name, final_step=name),
        )
        self._problems.sub_plans.append(plan)
        return make_plan_ref(plan)
