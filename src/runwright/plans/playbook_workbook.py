"""The workbook of a playbook: tasks that are written once, and used by name.

One with a loop or several tools is a playbook of its own, and a run of its own where it is used: its workload is the
playbook's, with `args` over it, and a loop in it sees the iteration that it is used in as `iter.parent`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from runwright.contract.plan import ExecutionPlan, Order, PlanMetadata, Step
from runwright.contract.playbook import Playbook
from runwright.core.net import Net

from .fields import Fields
from .known import remember
from .parts import make_part
from .problems import PLAN, Findings, Path

WHOLE_FIELDS = ("name", "desc", "description", "tool", "loop", "spec", "args", "input")

ReadStep = Callable[[dict[str, Any], Path], Step | None]


class Workbook:
    def __init__(self, top: Fields, findings: Findings, workload: dict[str, Any], plan_id: str, read: ReadStep) -> None:
        self._findings = findings
        self._workload = workload
        self._plan_id = plan_id
        self._read = read
        self._reading: list[str] = []
        self.tools: dict[str, tuple[dict[str, Any], Path]] = {}
        """Tasks of one tool, and where they stand."""
        self.wholes: dict[str, tuple[dict[str, Any], Path]] = {}
        """Of these, those that have more to them than a tool."""
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
        if isinstance(tool, list) or "loop" in item:
            Fields(item, path, PLAN, self._findings).refuse_unknown(WHOLE_FIELDS, "A task of the workbook")
            self.tools[name] = self.wholes[name] = (item, path)
        else:
            self.tools[name] = (cast("dict[str, Any]", tool), (*path, "tool") if "tool" in item else path)

    def as_playbook(self, name: str, args: dict[str, Any]) -> dict[str, Any] | None:
        """The inputs of a task that is a run of this; None if it cannot be one."""
        item, path = self.wholes[name]
        if name in self._reading:
            way = " -> ".join((*self._reading[self._reading.index(name) :], name))
            self._findings.error(path, PLAN, f"These tasks of the workbook use each other in a circle: {way}.")
            return None
        errors = len(self._findings.errors)
        self._reading.append(name)
        step = self._read({"step": name, **{key: item[key] for key in ("tool", "loop", "spec") if key in item}}, path)
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
        fields = Fields(item, path, PLAN, self._findings)
        own = {**(fields.mapping("args") or {}), **(fields.mapping("input") or {}), **args}
        return {"ref": remember(plan), "params": {**self._passed_on(plan, name), **own}}

    def _passed_on(self, plan: ExecutionPlan, name: str) -> dict[str, str]:
        """What it reads of the workload, as it is when it is used."""
        routes = Net(plan).routes
        assert routes is not None
        names = routes.stations[name].names
        wanted = [key for key in self._workload if key in names or "workload" in names]
        return {key: f"{{{{ workload[{key!r}] }}}}" for key in wanted}
