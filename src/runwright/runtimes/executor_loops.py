"""Event loops in threads of their own: one for our coroutines, others for those of users.

A user's coroutine may block its loop. The driver does not notice, for it is not on that loop; but other steps
are. So a watchdog looks whether the loop still answers. One that does not is named and replaced: new steps go to
a fresh loop, those on the blocked one go on when it is free again, and once it is empty it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from runwright.tools.base import StepContext, enter_step, running_step
from runwright.tools.pooled import close_pooled

from .executor_work import Outcome

_log = logging.getLogger(__name__)

HEARTBEAT = 0.25
BLOCKED_AFTER = 1.0


class LoopTask:
    """A coroutine on a loop, from its start to its end. Made on any thread, stopped from any thread."""

    __slots__ = ("_asked", "_home", "_task", "_wanted")

    def __init__(
        self,
        home: LoopThread,
        context: StepContext,
        claim: Callable[[], bool],
        run: Callable[[], Coroutine[Any, Any, Outcome]],
        ended: Callable[[Outcome], None],
    ) -> None:
        self._home = home
        self._task: asyncio.Task[None] | None = None
        self._wanted = 0
        self._asked = 0
        home.post(self._start, context, claim, run, ended)

    def stop(self) -> None:
        """Cancel it. Each call counts: being cancelled twice is how our own tools know that they must hurry."""
        self._wanted += 1
        self._home.post(self._home.loop.call_soon, self._pass_on)

    def _start(
        self,
        context: StepContext,
        claim: Callable[[], bool],
        run: Callable[[], Coroutine[Any, Any, Outcome]],
        ended: Callable[[Outcome], None],
    ) -> None:
        if not claim():
            return
        # A context of its own: nothing of the driver's, and nothing of another step's.
        fresh = contextvars.Context()
        fresh.run(enter_step, context)
        task = self._home.loop.create_task(_carry(run, ended), context=fresh)
        self._task = task
        self._home.tasks.add(task)
        task.add_done_callback(self._home.tasks.discard)
        # After its first step: a task that is cancelled before it began could not report that.
        self._home.loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._task is not None and self._asked < self._wanted:
            self._asked += 1
            self._task.cancel()


async def _carry(run: Callable[[], Coroutine[Any, Any, Outcome]], ended: Callable[[Outcome], None]) -> None:
    ended(await run())


class LoopThread:
    """A loop that runs in a thread until it is stopped, whatever its tasks do."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._make_task)
        self.tasks: set[asyncio.Task[None]] = set()
        self._owners: WeakKeyDictionary[asyncio.Future[Any], StepContext] = WeakKeyDictionary()
        self._inbox: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._awake = False
        self._stopping = False
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.thread.start()

    @property
    def is_free(self) -> bool:
        return not self.tasks and not self._inbox

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have this called on the loop. Several posts cost one wake-up."""
        self._inbox.append((call, args))
        if not self._awake:
            self._awake = True
            try:
                self.loop.call_soon_threadsafe(self._take)
            except RuntimeError:  # closed
                self._inbox.clear()

    def stop(self) -> None:
        self._stopping = True
        self.post(self.loop.stop)

    def what_blocks(self) -> str:
        """Who holds the loop right now, for people."""
        task = asyncio.current_task(self.loop)
        owner = None if task is None else self._owners.get(task)
        frame = sys._current_frames().get(self.thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
        who = "A callback" if owner is None else f"Step {owner.step_id!r} of run {owner.run_id!r}"
        return who if frame is None else f"{who} ({frame.f_code.co_filename}:{frame.f_lineno})"

    def _take(self) -> None:
        self._awake = False
        while self._inbox:
            call, args = self._inbox[0]
            try:
                call(*args)
            except Exception:
                _log.exception("What was posted to a loop failed.")
            self._inbox.popleft()  # last: until then the loop is not free

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **options)
        context: contextvars.Context | None = options.get("context")
        owner = running_step() if context is None else context.run(running_step)
        if owner is not None:
            self._owners[task] = owner
        return task

    def _main(self) -> None:
        while not self._stopping:
            try:
                self.loop.run_forever()
            except BaseException as error:  # SystemExit in a task that a step left behind ends the loop, not us
                _log.warning("A task that a step started raised %r. The other steps go on.", error)
        try:
            self.loop.run_until_complete(self._end())
        except BaseException as error:
            _log.warning("A task that a step left behind raised %r at the end.", error)
        self.loop.close()

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=2)
        await close_pooled()
        await self.loop.shutdown_asyncgens()


class StepLoops:
    """The loop for users' coroutines, and those that it took the place of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: LoopThread | None = None
        self._pulses: dict[LoopThread, _Pulse] = {}
        self._work = threading.Event()
        self._closed = threading.Event()
        self._watchdog: threading.Thread | None = None

    def start(
        self,
        context: StepContext,
        claim: Callable[[], bool],
        run: Callable[[], Coroutine[Any, Any, Outcome]],
        ended: Callable[[Outcome], None],
    ) -> LoopTask:
        """Run a step's coroutine on the loop that is open for new ones."""
        with self._lock:  # no loop is retired between being chosen and being given the step
            if self._current is None:
                self._current = self._open()
            if self._watchdog is None:
                self._watchdog = threading.Thread(target=self._watch, name="step loop watchdog", daemon=True)
                self._watchdog.start()
            task = LoopTask(self._current, context, claim, run, ended)
        self._work.set()
        return task

    def close(self) -> None:
        self._closed.set()
        self._work.set()
        with self._lock:
            homes = list(self._pulses)
        for home in homes:
            home.stop()
        for home in homes:
            home.thread.join(timeout=0.5)

    def _open(self) -> LoopThread:
        home = LoopThread("step loop")
        self._pulses[home] = _Pulse()
        return home

    def _watch(self) -> None:
        while self._work.wait() and not self._closed.is_set():
            self._work.clear()
            for home, pulse in list(self._pulses.items()):
                self._feel(home, pulse)
            # Without work there is nothing to watch: an idle process sleeps.
            if len(self._pulses) > 1 or any(not home.is_free for home in self._pulses):
                self._work.set()
                self._closed.wait(HEARTBEAT)

    def _feel(self, home: LoopThread, pulse: _Pulse) -> None:
        if pulse.asked_at is not None:
            if monotonic() - pulse.asked_at > BLOCKED_AFTER and not pulse.blocked:
                pulse.blocked = True
                self._replace(home)
            return
        with self._lock:
            if home.is_free:
                if home is not self._current:
                    del self._pulses[home]
                    home.stop()
                return
        pulse.asked_at = monotonic()
        home.post(pulse.answer)

    def _replace(self, home: LoopThread) -> None:
        _log.warning(
            "%s has blocked the event loop for steps for more than %g s. New steps get a new loop; those on this one "
            "wait. Make it a plain function, which gets a thread, or await what it waits for.",
            home.what_blocks(),
            BLOCKED_AFTER,
        )
        with self._lock:
            if home is self._current and not self._closed.is_set():
                self._current = self._open()


class _Pulse:
    """Whether a loop answers."""

    def __init__(self) -> None:
        self.asked_at: float | None = None
        self.blocked = False

    def answer(self) -> None:
        self.asked_at = None
        self.blocked = False
