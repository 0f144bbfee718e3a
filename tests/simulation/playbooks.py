"""Random playbooks, and an executor with a fixed outcome for each attempt of a task."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from runwright.contract.plan import ExecutionPlan
from runwright.contract.refs import ErrorInfo
from runwright.plans.loader import plan_from_dict
from runwright.runtimes.executor.executor import Outcome, Work
from runwright.tools.registry import all_tools
from simulation.world import SimulatedExecution, SimulatedExecutor, World
from support.playbooks import noop, otherwise, playbook, rules, when


def random_playbook(dice: random.Random) -> ExecutionPlan:
    """Steps with arcs forward and back, loops and policies. The outcome does not depend on timing."""
    count = dice.randint(1, 6)
    names = [f"s{number}" for number in range(count)]
    has_cycles = dice.random() < 0.5  # or branches: with both, the outcome would depend on timing
    steps: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        is_loop = dice.random() < 0.35
        allows_parallel_visits = not has_cycles and dice.random() < 0.3
        step: dict[str, Any] = {
            "step": name,
            "tool": _pipeline(dice, name, sets_ctx=not is_loop and not allows_parallel_visits),
        }
        if is_loop:
            mode = dice.choice(("sequential", "parallel"))
            items = list(range(dice.choice((0, 1, 3, 7))))
            step["loop"] = {
                "in": items,
                "iterator": "x",
                "spec": {"mode": mode, "max_in_flight": dice.choice((1, 2, 16))},
            }
        if dice.random() < 0.3:
            step["spec"] = {"policy": {"failure": {"mode": dice.choice(("fail_fast", "best_effort"))}}}
        passed = {"from": name, **({"alike": "{{ output.data is mapping }}"} if dice.random() < 0.3 else {})}
        arcs: list[dict[str, Any]] = [
            {"step": later, "args": passed} for later in names[number + 1 :] if dice.random() < 0.5
        ]
        if has_cycles and dice.random() < 0.3 and "loop" not in step:
            target = dice.choice(names[: number + 1])
            key = f"round_{name}"
            step["set"] = {f"ctx.{key}": "{{ (ctx." + key + " | default(0)) + 1 }}"}
            arcs.insert(0, {"step": target, "when": "{{ ctx." + key + " < 3 }}"})
        if dice.random() < 0.3:
            arcs.append({"step": dice.choice(names[number:]), "when": "{{ event.name == 'step.failed' and false }}"})
        if arcs:
            mode = "exclusive" if has_cycles else dice.choice(("exclusive", "inclusive"))
            step["next"] = {"spec": {"mode": mode}, "arcs": arcs}
        if allows_parallel_visits:
            step["join"] = "any"
        steps.append(step)
    more: dict[str, Any] = {}
    if dice.random() < 0.3:
        more["executor"] = {"spec": {"final_step": names[-1]}}
        steps[-1].pop("next", None)
    return plan_from_dict(playbook(*steps, **more), all_tools()).plan


def _result_spec(dice: random.Random, label: str) -> dict[str, Any]:
    """Settings for results that are stored by reference, with a random scope."""
    spec: dict[str, Any] = {"inline_max_bytes": 0, "select": [{"path": "$.x", "as": "x"}]}
    spec["store"] = {"scope": dice.choice(("step", "execution", "permanent"))}
    if dice.random() < 0.5:
        spec["manifest"] = {"as": f"all_{label}", "strategy": dice.choice(("append", "concat", "replace"))}
    return spec


def _pipeline(dice: random.Random, step: str, *, sets_ctx: bool) -> list[dict[str, Any]]:
    labels = [f"t{number}" for number in range(dice.randint(1, 3))]
    tasks: list[dict[str, Any]] = []
    for number, label in enumerate(labels):
        task = noop()
        if number and dice.random() < 0.5:
            task = noop("{{ " + dice.choice(labels[:number]) + " | default('not there') }}")
        if dice.random() < 0.6:
            task_rules = [
                when(
                    "outcome.status == 'error'", "retry", attempts=dice.choice((2, 4)), delay=dice.choice((0, 0.2, 3))
                ),
            ]
            if dice.random() < 0.3:
                jump = {"set_iter": {"n": "{{ (iter.n | default(0)) + 1 }}"}}
                task_rules.append(when("(iter.n | default(0)) < 2", "jump", to=dice.choice(labels), **jump))
            if dice.random() < 0.2:
                task_rules.append(otherwise("break"))
            else:
                ctx_update = {"set_ctx": {f"{step}_{label}": "{{ outcome.result }}"}} if sets_ctx else {}
                task_rules.append(otherwise("continue", **ctx_update))
            task["spec"] = rules(*task_rules)
        if dice.random() < 0.4:
            task["spec"] = {**task.get("spec", {}), "result": _result_spec(dice, label)}
        tasks.append({label: task})
    return tasks


class ScriptedExecutor(SimulatedExecutor):
    """Outcomes follow from task, attempt and seed; durations are random."""

    def start(self, work: Work, done: Callable[[Outcome], None]) -> SimulatedExecution:
        self.running += 1
        context = work.context
        self.world.on_started(context.run_id, context.step_id, context.attempt)
        execution = SimulatedExecution(self, work, done)
        outcome = self.world.script(context.step_id, context.attempt)
        asyncio.get_running_loop().call_later(self.dice.choice((0, 0.001, 0.05, 0.5, 3.0)), execution.finish, outcome)
        return execution


def with_scripts(world: World) -> World:
    def script(path: str, attempt: int) -> Outcome:
        roll = sha256(f"{world.seed}|{path}|{attempt}".encode()).digest()[0]
        if roll < 256 * world.failures:
            return Outcome(error=ErrorInfo("BOOM", "It failed.", retryable=True))
        return Outcome(result=msgspec.json.encode(roll))

    world.executor, world.script = ScriptedExecutor, script
    return world
