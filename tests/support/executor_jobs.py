"""Functions of users for tests of the executor, well-behaved and not."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from runwright.tools.base import StepError, current_step

GATES: dict[str, threading.Event] = {}
_marked: contextvars.ContextVar[str] = contextvars.ContextVar("marked", default="clean")


def gate(name: str) -> threading.Event:
    return GATES.setdefault(name, threading.Event())


def give(value: Any = None) -> Any:
    return value


async def give_async(value: Any = None) -> Any:
    await asyncio.sleep(0)
    return value


@functools.wraps(give_async)
def give_wrapped(*args: Any) -> Any:
    return give_async(*args)


async def give_later(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "late"


def where() -> dict[str, Any]:
    step = current_step()
    return {
        "run": step.run_id,
        "step": step.step_id,
        "attempt": step.attempt,
        "token": step.idempotency_token,
        "restored": step.restored,
        "thread": threading.current_thread().name,
        "pid": os.getpid(),
    }


async def where_async() -> dict[str, Any]:
    await asyncio.sleep(0)
    return where()


def fail(text: str = "broken") -> None:
    raise ValueError(text)


async def fail_async(text: str = "broken") -> None:
    await asyncio.sleep(0)
    raise ValueError(text)


def fail_coded() -> None:
    raise StepError("NO_STOCK", "Nothing left.", retryable=False, category="business", sku=7)


def fail_coded_oddly() -> None:
    raise StepError("A\0B", "half \ud800", thing=object())


def leave(code: int = 3) -> None:
    sys.exit(code)


async def leave_async() -> None:
    raise SystemExit(3)


async def leave_in_a_task() -> str:
    async def bad() -> None:
        raise SystemExit("from a task")

    asyncio.create_task(bad()).add_done_callback(lambda task: task.exception())
    await asyncio.sleep(0.05)
    return "still here"


def interrupt() -> None:
    raise KeyboardInterrupt


def recurse() -> Any:
    return recurse()


def no_memory() -> None:
    raise MemoryError


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def fail_rudely() -> None:
    raise Rude


def give_object() -> object:
    return object()


async def give_set() -> Any:
    return {1, 2}


def mark() -> str:
    before = _marked.get()
    _marked.set("dirty")
    return before


def wait_for(name: str) -> str:
    gate(name).wait(30)
    return "waited"


def wait_politely() -> str:
    current_step().cancelled.wait(30)
    return "stopped when asked"


def wait_by_name(name: str) -> None:
    print("begun")
    gate(name).wait(30)
    print("late words")


async def block(name: str) -> str:
    await asyncio.sleep(0)
    gate(name).wait(30)
    return "unblocked"


async def block_in_a_child_task(name: str) -> str:
    return await asyncio.create_task(block(name))


async def ignore_cancellation(name: str) -> str:
    while not gate(name).is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    return "when I like"


async def clean_up() -> None:
    try:
        await asyncio.sleep(30)
    finally:
        print("cleaned up")


def talk() -> None:
    print("to out")
    print("to err", file=sys.stderr)
    sys.stdout.write("no newline")
    sys.stdout.buffer.write(b" raw")
    logging.getLogger("shop").warning("to the log")


async def talk_async(name: str) -> None:
    for number in range(20):
        print(name, number)
        await asyncio.sleep(0)
    await asyncio.to_thread(print, name, "from a thread")


def print_lines(count: int) -> None:
    for number in range(count):
        print(number)


def flood(megabytes: int) -> None:
    line = "x" * 999 + "\n"
    for _ in range(megabytes * 1000):
        sys.stdout.write(line)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def save_twice() -> Any:
    step = current_step()
    step.checkpoint({"at": 1})
    step.checkpoint({"at": 2})
    return step.restored


def save_badly() -> None:
    current_step().checkpoint({1, 2})


def save_on_stop() -> str:
    step = current_step()
    print("begun")
    step.cancelled.wait(30)
    step.checkpoint("stopped here")
    return "saved"


def sleep_with_cleanup() -> None:
    try:
        print("begun")
        time.sleep(30)
    finally:
        print("cleaned up")


async def sleep_async_with_cleanup() -> None:
    try:
        print("begun")
        await asyncio.sleep(30)
    finally:
        print("cleaned up")


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid())
    while True:
        time.sleep(1)


def die(number: int) -> None:
    print("last words")
    sys.stdout.flush()
    os.kill(os.getpid(), number)
    time.sleep(5)


def exit_hard(code: int) -> None:
    os._exit(code)


def leave_child_behind() -> int:
    return subprocess.Popen(["sleep", "60"]).pid


def leave_thread_behind() -> str:
    threading.Thread(target=time.sleep, args=(60,)).start()
    return "done"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RUNWRIGHT_")}
