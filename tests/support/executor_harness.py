"""Harness for tests of the executor: start steps and wait for their outcomes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import msgspec

from runwright.contract.plan import Step, StepClass
from runwright.runtimes.executor.executor import Executor, LocalExecution, Outcome, Work
from runwright.tools.base import StepContext
from runwright.tools.registry import builtin_tools
from support.waiting import until


class Job:
    """A started step, its output and its outcome."""

    def __init__(self, desk: ExecutorHarness, work: Work, output: list[tuple[str, bytes]]) -> None:
        self.context = work.context
        self._output = output
        self.outcomes: list[Outcome] = []
        self._over = asyncio.Event()
        self.execution: LocalExecution = desk.executor.start(work, self._done)

    def _done(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._over.set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def end(self) -> Outcome:
        async with asyncio.timeout(30):
            await self._over.wait()
        assert len(self.outcomes) == 1
        return self.outcomes[0]

    async def result(self) -> Any:
        outcome = await self.end()
        assert outcome.error is None, (outcome.error, self.text("err"))
        assert outcome.result is not None
        return msgspec.json.decode(outcome.result)

    async def error(self) -> tuple[str | None, str | None]:
        outcome = await self.end()
        assert outcome.result is None
        assert outcome.error is not None
        return outcome.error.code, outcome.error.message

    def text(self, stream: str = "out") -> str:
        return b"".join(data for name, data in self._output if name == stream).decode(errors="replace")

    async def prints(self, text: str) -> None:
        await until(lambda: text in self.text())


TOKEN = sha256(b"run 1|s|1").hexdigest()


class ExecutorHarness:
    """An executor, with short methods to start steps on it."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def start(
        self,
        kind: str,
        inputs: dict[str, Any],
        step_class: StepClass = StepClass.LIGHT,
        *,
        tool: Any = None,
        save: Callable[[Any], None] = lambda _: None,
        write: Callable[[str, bytes], None] | None = None,
        end_output: Callable[[], None] = lambda: None,
        restored: Any = None,
        step_id: str = "s",
    ) -> Job:
        tool = tool or builtin_tools()[kind]
        output: list[tuple[str, bytes]] = []
        context = StepContext(
            run_id="run 1",
            step_id=step_id,
            attempt=1,
            engine_attempt=1,
            restored=restored,
            write=write or (lambda stream, data: output.append((stream, data))),
            save=save,
            end_output=end_output,
        )
        step = Step(step_id=step_id, kind=kind, step_class=step_class)
        filled = msgspec.convert(inputs, tool.inputs)
        return Job(self, Work(tool, tool.lane(filled, step), filled, step, context), output)

    def call(self, function: str, *args: Any, **options: Any) -> Job:
        return self.start("python", {"call": f"support.executor_jobs:{function}", "args": list(args)}, **options)

    def isolated(self, function: str, *args: Any, **options: Any) -> Job:
        return self.call(function, *args, step_class=StepClass.ISOLATION, **options)

    def shell(self, command: Any, **options: Any) -> Job:
        return self.start("shell", {"command": command}, **options)


@contextlib.asynccontextmanager
async def executor_harness(**options: Any) -> AsyncIterator[ExecutorHarness]:
    executor = Executor(asyncio.get_running_loop(), **options)
    try:
        yield ExecutorHarness(executor)
    finally:
        executor.close()
