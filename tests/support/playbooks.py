"""Helpers for tests of playbooks: documents, runs and results."""

from __future__ import annotations

from typing import Any

import runwright as rw
from runwright.control.operations import Operations
from support.engine import event_lines, run_plan

WAIT_FOR_FILE = "import os, time\nwhile not os.path.exists(go):\n    time.sleep(0.01)"
"""Code that waits until a file exists."""


def playbook(*steps: dict[str, Any], workload: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"apiVersion": "noetl.io/v10", "kind": "Playbook", "metadata": {"name": "p"}, **more}
    if workload is not None:
        document["workload"] = workload
    return {**document, "workflow": list(steps)}


def python_task(text: str, **args: Any) -> dict[str, Any]:
    return {"kind": "python", "code": text, "args": args}


def noop(value: Any = None) -> dict[str, Any]:
    return {"kind": "noop", "result": value} if value is not None else {"kind": "noop"}


def rules(*each: dict[str, Any]) -> dict[str, Any]:
    return {"policy": {"rules": list(each)}}


def when(condition: str, do: str | None, **more: Any) -> dict[str, Any]:
    return {"when": "{{ " + condition + " }}", "then": {"do": do, **more}}


def otherwise(do: str, **more: Any) -> dict[str, Any]:
    return {"else": {"then": {"do": do, **more}}}


def arcs_to(*names: str, mode: str = "exclusive") -> dict[str, Any]:
    return {"spec": {"mode": mode}, "arcs": [{"step": name} for name in names]}


async def run_playbook(
    operations: Operations, document: dict[str, Any], **start: Any
) -> tuple[rw.RunSnapshot, list[str]]:
    """Run a playbook to its end; return its snapshot and its event lines."""
    snapshot = await run_plan(operations, document, **start)
    return snapshot, await event_lines(operations, snapshot.run_id)


async def context_of(operations: Operations, run_id: str) -> dict[str, Any]:
    """Return `ctx` as recorded in the events of the run."""
    ctx: dict[str, Any] = {}
    for record in await operations.log.read(run_id):
        ctx |= (record.payload or {}).get("ctx") or {}
    return ctx


async def result_of(operations: Operations, snapshot: rw.RunSnapshot) -> Any:
    return await operations.run_result(snapshot.run_id)
