"""Random playbooks, and an executor under which the same task always comes to the same end."""

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
    """Steps with arcs forward and back, loops, policies. What it comes to does not hang on who is faster."""
    count = dice.randint(1, 6)
    names = [f"s{number}" for number in range(count)]
    has_circles = dice.random() < 0.5  # or branches: with both, who is faster would count
    steps: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        is_loop = dice.random() < 0.35
        many = not has_circles and dice.random() < 0.3  # visits at once
        step: dict[str, Any] = {"step": name, "tool": _pipeline(dice, name, keeps_ctx=not is_loop and not many)}
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
        if has_circles and dice.random() < 0.3 and "loop" not in step:
            back = dice.choice(names[: number + 1])
            key = f"round_{name}"
            step["set"] = {f"ctx.{key}": "{{ (ctx." + key + " | default(0)) + 1 }}"}
            arcs.insert(0, {"step": back, "when": "{{ ctx." + key + " < 3 }}"})
        if dice.random() < 0.3:
            arcs.append({"step": dice.choice(names[number:]), "when": "{{ event.name == 'step.failed' and false }}"})
        if arcs:
            mode = "exclusive" if has_circles else dice.choice(("exclusive", "inclusive"))
            step["next"] = {"spec": {"mode": mode}, "arcs": arcs}
        if many:
            step["join"] = "any"
        steps.append(step)
    more: dict[str, Any] = {}
    if dice.random() < 0.3:
        more["executor"] = {"spec": {"final_step": names[-1]}}
        steps[-1].pop("next", None)
    return plan_from_dict(playbook(*steps, **more), all_tools()).plan


def _keeping(dice: random.Random, label: str) -> dict[str, Any]:
    """Results that go elsewhere, for a while or for good."""
    keeping: dict[str, Any] = {"inline_max_bytes": 0, "select": [{"path": "$.x", "as": "x"}]}
    keeping["store"] = {"scope": dice.choice(("step", "execution", "permanent"))}
    if dice.random() < 0.5:
        keeping["manifest"] = {"as": f"all_{label}", "strategy": dice.choice(("append", "concat", "replace"))}
    return keeping


def _pipeline(dice: random.Random, step: str, *, keeps_ctx: bool) -> list[dict[str, Any]]:
    labels = [f"t{number}" for number in range(dice.randint(1, 3))]
    tasks: list[dict[str, Any]] = []
    for number, label in enumerate(labels):
        task = noop()
        if number and dice.random() < 0.5:
            task = noop("{{ " + dice.choice(labels[:number]) + " | default('not there') }}")
        if dice.random() < 0.6:
            each = [
                when(
                    "outcome.status == 'error'", "retry", attempts=dice.choice((2, 4)), delay=dice.choice((0, 0.2, 3))
                ),
            ]
            if dice.random() < 0.3:
                jump = {"set_iter": {"n": "{{ (iter.n | default(0)) + 1 }}"}}
                each.append(when("(iter.n | default(0)) < 2", "jump", to=dice.choice(labels), **jump))
            if dice.random() < 0.2:
                each.append(otherwise("break"))
            else:
                seen = {"set_ctx": {f"{step}_{label}": "{{ outcome.result }}"}} if keeps_ctx else {}
                each.append(otherwise("continue", **seen))
            task["spec"] = rules(*each)
        if dice.random() < 0.4:
            task["spec"] = {**task.get("spec", {}), "result": _keeping(dice, label)}
        tasks.append({label: task})
    return tasks


class ScriptedExecutor(SimulatedExecutor):
    """What a task comes to is a matter of which it is, and of the world's seed; how long it takes is not."""

    def start(self, work: Work, done: Callable[[Outcome], None]) -> SimulatedExecution:
        self.running += 1
        context = work.context
        self.world.started(context.run_id, context.step_id, context.attempt)
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
