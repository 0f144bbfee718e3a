"""Event loops in threads of their own: one for the coroutines of built-in tools, others for those of users.

A user's coroutine may block its loop. That does not affect the driver, which runs on another loop, but it delays the
other steps on the blocked loop. So a watchdog probes whether a loop still responds. If it does not, a warning names
the step that blocks it and the loop is replaced: new steps start on a new loop, those on the blocked loop continue
when it is free again, and once it has no tasks it is stopped.
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
from runwright.tools.connection_cache import close_cached

from .work import Outcome

_log = logging.getLogger(__name__)

PROBE_INTERVAL = 0.25  # seconds, as the next
BLOCKED_AFTER = 1.0


class LoopTask:
    """A coroutine on a loop, from its start to its end. May be created and stopped from any thread."""

    __slots__ = ("_loop_thread", "_stops_delivered", "_stops_requested", "_task")

    def __init__(
        self,
        loop_thread: LoopThread,
        context: StepContext,
        claim: Callable[[], bool],
        run: Callable[[], Coroutine[Any, Any, Outcome]],
        on_end: Callable[[Outcome], None],
    ) -> None:
        self._loop_thread = loop_thread
        self._task: asyncio.Task[None] | None = None
        self._stops_requested = 0
        self._stops_delivered = 0
        loop_thread.post(self._start, context, claim, run, on_end)

    def stop(self) -> None:
        """Cancel it. Each call counts: a second cancellation makes the built-in tools stop by force."""
        self._stops_requested += 1
        self._loop_thread.post(self._loop_thread.loop.call_soon, self._deliver_stops)

    def _start(
        self,
        context: StepContext,
        claim: Callable[[], bool],
        run: Callable[[], Coroutine[Any, Any, Outcome]],
        on_end: Callable[[Outcome], None],
    ) -> None:
        if not claim():
            return
        # An empty context: context variables of the driver and of other steps are not visible.
        step_context = contextvars.Context()
        step_context.run(enter_step, context)
        task = self._loop_thread.loop.create_task(_run_and_report(run, on_end), context=step_context)
        self._task = task
        self._loop_thread.tasks.add(task)
        task.add_done_callback(self._loop_thread.tasks.discard)
        # After the task has started: a task that is cancelled before that could not report its end.
        self._loop_thread.loop.call_soon(self._deliver_stops)

    def _deliver_stops(self) -> None:
        while self._task is not None and self._stops_delivered < self._stops_requested:
            self._stops_delivered += 1
            self._task.cancel()


async def _run_and_report(run: Callable[[], Coroutine[Any, Any, Outcome]], on_end: Callable[[Outcome], None]) -> None:
    on_end(await run())


class LoopThread:
    """A loop that runs in a thread until it is stopped, even if its tasks raise SystemExit."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._create_task)
        self.tasks: set[asyncio.Task[None]] = set()
        self._owners: WeakKeyDictionary[asyncio.Future[Any], StepContext] = WeakKeyDictionary()
        self._inbox: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_wakeup_scheduled = False
        self._stopping = False
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.thread.start()

    @property
    def is_free(self) -> bool:
        return not self.tasks and not self._inbox

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Call something on the loop, from any thread. Several posts cost one wake-up."""
        self._inbox.append((call, args))
        if not self._is_wakeup_scheduled:
            self._is_wakeup_scheduled = True
            try:
                self.loop.call_soon_threadsafe(self._run_posted)
            except RuntimeError:  # the loop is closed
                self._inbox.clear()

    def stop(self) -> None:
        self._stopping = True
        self.post(self.loop.stop)

    def describe_blocker(self) -> str:
        """Describe the step that occupies the loop now, and the line it is at."""
        task = asyncio.current_task(self.loop)
        owner = None if task is None else self._owners.get(task)
        frame = sys._current_frames().get(self.thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
        blocker = "A callback" if owner is None else f"Step {owner.step_id!r} of run {owner.run_id!r}"
        return blocker if frame is None else f"{blocker} ({frame.f_code.co_filename}:{frame.f_lineno})"

    def _run_posted(self) -> None:
        self._is_wakeup_scheduled = False
        while self._inbox:
            call, args = self._inbox[0]
            try:
                call(*args)
            except Exception:
                _log.exception("A callback posted to a step loop failed.")
            self._inbox.popleft()  # Last, because until then the loop is not free.

    def _create_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
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
            except BaseException as error:  # SystemExit in a task ends `run_forever`
                _log.warning("A background task of a step raised %r. Other steps continue.", error)
        try:
            self.loop.run_until_complete(self._shut_down())
        except BaseException as error:
            _log.warning("A background task of a step raised %r during shutdown.", error)
        self.loop.close()

    async def _shut_down(self) -> None:
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        for task in remaining:
            task.cancel()
        if remaining:
            await asyncio.wait(remaining, timeout=2)
        await close_cached()
        await self.loop.shutdown_asyncgens()


class StepLoops:
    """The loop for users' coroutines, and the blocked loops that it replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: LoopThread | None = None
        self._probes: dict[LoopThread, _Probe] = {}
        self._has_work = threading.Event()
        self._closed = threading.Event()
        self._watchdog: threading.Thread | None = None

    def start(
        self,
        context: StepContext,
        claim: Callable[[], bool],
        run: Callable[[], Coroutine[Any, Any, Outcome]],
        on_end: Callable[[Outcome], None],
    ) -> LoopTask:
        """Run a step's coroutine on the loop that accepts new ones."""
        with self._lock:  # so that the loop is not stopped between its choice and the start of the step
            if self._current is None:
                self._current = self._open()
            if self._watchdog is None:
                self._watchdog = threading.Thread(target=self._watch, name="step loop watchdog", daemon=True)
                self._watchdog.start()
            task = LoopTask(self._current, context, claim, run, on_end)
        self._has_work.set()
        return task

    def close(self) -> None:
        self._closed.set()
        self._has_work.set()
        with self._lock:
            loop_threads = list(self._probes)
        for loop_thread in loop_threads:
            loop_thread.stop()
        for loop_thread in loop_threads:
            loop_thread.thread.join(timeout=0.5)

    def _open(self) -> LoopThread:
        loop_thread = LoopThread("step loop")
        self._probes[loop_thread] = _Probe()
        return loop_thread

    def _watch(self) -> None:
        while self._has_work.wait() and not self._closed.is_set():
            self._has_work.clear()
            for loop_thread, probe in list(self._probes.items()):
                self._check(loop_thread, probe)
            # The watchdog sleeps while there are no tasks, so an idle process does not wake up.
            if len(self._probes) > 1 or any(not loop_thread.is_free for loop_thread in self._probes):
                self._has_work.set()
                self._closed.wait(PROBE_INTERVAL)

    def _check(self, loop_thread: LoopThread, probe: _Probe) -> None:
        if probe.sent_at is not None:
            if monotonic() - probe.sent_at > BLOCKED_AFTER and not probe.is_blocked:
                probe.is_blocked = True
                self._replace(loop_thread)
            return
        with self._lock:
            if loop_thread.is_free:
                if loop_thread is not self._current:
                    del self._probes[loop_thread]
                    loop_thread.stop()
                return
        probe.sent_at = monotonic()
        loop_thread.post(probe.on_response)

    def _replace(self, loop_thread: LoopThread) -> None:
        _log.warning(
            "%s has blocked the event loop for steps for more than %g s. New steps get a new loop; those on this one "
            "wait. Make it a plain function, which runs in a thread, or replace the blocking call by an awaitable.",
            loop_thread.describe_blocker(),
            BLOCKED_AFTER,
        )
        with self._lock:
            if loop_thread is self._current and not self._closed.is_set():
                self._current = self._open()


class _Probe:
    """A callback posted to a loop to find out whether the loop still responds."""

    def __init__(self) -> None:
        self.sent_at: float | None = None
        self.is_blocked = False

    def on_response(self) -> None:
        self.sent_at = None
        self.is_blocked = False
