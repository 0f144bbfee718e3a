"""The workbook of a playbook: tasks that are written once, and used by name.

One with a loop or several tools is a playbook of its own, and a run of its own where it is used: its workload is the
playbook's, with `args` over it, and a loop in it sees the iteration that it is used in as `iter.parent`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from runwright.contract.plan import ExecutionPlan, Order, PlanMetadata, Step
from runwright.contract.playbook import Playbook

from .fields import Fields
from .known import ref_of
from .parts import make_part
from .problems import PLAN, Findings, Path

FIELDS = ("name", "desc", "description", "tool", "loop", "spec", "args", "input", "assert")
DEEPEST = 20
"""How many tasks of the workbook may be within each other."""

ReadStep = Callable[[dict[str, Any], Path], Step | None]


class Workbook:
    def __init__(self, top: Fields, findings: Findings, plan_id: str, read: ReadStep) -> None:
        self._findings = findings
        self._plan_id = plan_id
        self._read = read
        self._reading: list[str] = []
        self._refs: dict[tuple[str, str | None], str | None] = {}  # of what was read, by name and queue
        self.tools: dict[str, tuple[dict[str, Any], Path]] = {}
        """All tasks, and where they stand."""
        self.used: set[str] = set()
        self.wholes: set[str] = set()
        """Those that have more to them than a tool."""
        for name, value, path in self._pairs(top):
            self._add(name, value, path)

    def _pairs(self, top: Fields) -> list[tuple[Any, Any, Path]]:
        """A list of `{name, tool}`, or a mapping."""
        given = top.raw("workbook")
        if isinstance(given, dict):
            return [(name, value, ("workbook", name)) for name, value in cast("dict[str, Any]", given).items()]
        if isinstance(given, list):
            return [
                (cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None, item, ("workbook", at))
                for at, item in enumerate(cast("list[Any]", given))
            ]
        if given is not None:
            top.wrong("workbook", "`workbook` is a list of named tasks, or a mapping.")
        return []

    def _add(self, name: Any, value: Any, path: Path) -> None:
        item = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        tool: Any = item.get("tool", item)
        if not isinstance(name, str) or not isinstance(tool, dict | list) or not tool:
            self._findings.error(path, PLAN, "A task of the workbook has a name and a tool.")
            return
        if name in self.tools:
            self._findings.error(path, PLAN, f"The workbook has {name!r} twice.")
        if "tool" in item:
            Fields(item, path, PLAN, self._findings).refuse_unknown(FIELDS, "A task of the workbook")
        if "assert" in item and "tool" in item:
            self._findings.warning((*path, "assert"), "`assert` is not looked at.")
        if isinstance(tool, list) or "loop" in item:
            self.wholes.add(name)
            self.tools[name] = (item, path)
        elif "tool" in item:
            given = cast("dict[str, Any]", tool)
            beside = {key: item[key] for key in ("args", "input", "spec") if item.get(key) and not given.get(key)}
            self.tools[name] = ({**given, **beside}, (*path, "tool"))
        else:
            self.tools[name] = (item, path)

    def as_playbook(self, name: str, args: dict[str, Any], dispatch: dict[str, str] | None) -> dict[str, Any] | None:
        """The inputs of a task that is a run of this; None if it cannot be one."""
        item, path = self.tools[name]
        place = (name, None if dispatch is None else dispatch["queue"])
        if place not in self._refs:
            self._refs[place] = self._ref(name, item, path, dispatch)
        ref = self._refs[place]
        if ref is None:
            return None
        fields = Fields(item, path, PLAN, self._findings)
        own = {**(fields.mapping("args") or {}), **(fields.mapping("input") or {}), **args}
        return {"ref": ref, "params": own, "inherit": True}

    def _ref(self, name: str, item: dict[str, Any], path: Path, dispatch: dict[str, str] | None) -> str | None:
        if name in self._reading or len(self._reading) >= DEEPEST:
            way = " -> ".join((*self._reading, name))
            how = "in a circle" if name in self._reading else f"more than {DEEPEST} deep"
            self._findings.error(path, PLAN, f"These tasks of the workbook use each other {how}: {way}.")
            return None
        errors = len(self._findings.errors)
        made: dict[str, Any] = {"step": name, **{key: item[key] for key in ("tool", "loop", "spec") if key in item}}
        spec: Any = made.get("spec", {})
        if dispatch is not None and isinstance(spec, dict):
            made["spec"] = {"dispatch": dispatch, **cast("dict[str, Any]", spec)}
        self._reading.append(name)
        step = self._read(made, path)
        self._reading.pop()
        if step is None or len(self._findings.errors) > errors:
            return None
        plan = make_part(
            ExecutionPlan,
            metadata=PlanMetadata(plan_id=f"{self._plan_id}.{name}"),
            order=Order.ROUTED,
            steps=(step,),
            playbook=Playbook(entry=name, final_step=name),
        )
        self._findings.parts.append(plan)
        return ref_of(plan)
