"""Child process of a step: in a session of its own, its output read as it comes, stopped with all its children.

Processes that a step starts end with it. Once the child itself has ended, its own children get LINGER seconds to finish
their output; then their process group is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from .base import StepError
from .process_guard import PROCESS_GUARD, with_group_report

LINGER = 0.5
"""Seconds for which grandchildren may hold the output open after the child has ended."""

_BLOCK = 64 * 1024
_POLL = 0.02


class ChildProcess:
    """Bound to the event loop that it was started on. The loop must not be blocked, because it reads the output."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str],
        cwd: str | None = None,
        pass_fds: Sequence[int] = (),
        write: Callable[[str, bytes], None],
    ) -> None:
        with PROCESS_GUARD.report_pipe() as report_pipe:
            self._popen = subprocess.Popen(  # noqa: S603 - running the plan author's command is the purpose
                with_group_report(list(argv)),
                stdin=report_pipe,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=env,
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._is_status_lost = False
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._pipes: dict[int, str] = {}
        for stream, pipe in (("out", self._popen.stdout), ("err", self._popen.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe.fileno()] = stream
            self._loop.add_reader(pipe.fileno(), self._read, pipe.fileno())

    async def finish(self, grace: Callable[[], float]) -> int:
        """Wait for the end and return the exit status, negative for a signal.

        If cancelled, terminate the whole group, and kill it after `grace()` seconds or when cancelled again.
        """
        try:
            await self._wait_for_exit()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await self._drained.wait()
        except asyncio.CancelledError:
            await self._stop(grace())
            raise
        finally:
            status = self._clean_up()
        return status

    def kill(self) -> None:
        """Kill the process and all its children. `finish` must be running, to reap it."""
        self._signal(signal.SIGKILL)

    async def _wait_for_exit(self) -> None:
        """Wait until the process itself has ended, without reaping it, so that its number is not reused."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # no pidfd on this system, or the process was reaped elsewhere
            while not self._has_exited():  # noqa: ASYNC110 - there is no notification
                await asyncio.sleep(_POLL)
            return
        ended = asyncio.Event()
        self._loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)

    async def _stop(self, grace: float) -> None:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process cannot handle SIGTERM
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(grace):
                await self._wait_for_exit()
                await self._drained.wait()
        self._signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(1):
                await self._wait_for_exit()

    def _clean_up(self) -> int:
        """Kill remaining processes of the group, read remaining output, and reap the child."""
        self._signal(signal.SIGKILL)
        for descriptor in list(self._pipes):
            for _ in range(32):  # bounded: a process that left the group may write forever
                if descriptor in self._pipes and not self._read(descriptor):
                    break
            self._close(descriptor)
        PROCESS_GUARD.release_group(self.pid)
        return self._reap()

    def _reap(self) -> int:
        # It has ended, unless the kernel cannot kill it. Then it is abandoned, because nothing may block here.
        if not self._has_exited():
            self._popen.returncode = -signal.SIGKILL
        if self._is_status_lost:
            raise StepError("PROCESS_DIED", "Exit status unknown: other code in this process reaped the child.")
        return self._popen.returncode

    def _has_exited(self) -> bool:
        """Whether the process has ended. Popen.poll would report success if other code reaped the process."""
        if self._popen.returncode is not None:
            return True
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self._is_status_lost = True
            self._popen.returncode = -signal.SIGKILL
            return True
        if pid:
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _read(self, descriptor: int) -> bool:
        """Read one block of output. Return False if there is none now, or at end of file."""
        try:
            data = os.read(descriptor, _BLOCK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(descriptor)
            return False
        self._write(self._pipes[descriptor], data)
        return True

    def _close(self, descriptor: int) -> None:
        if self._pipes.pop(descriptor, None) is None:
            return
        self._loop.remove_reader(descriptor)
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None and not pipe.closed and pipe.fileno() == descriptor:
                pipe.close()
        if not self._pipes:
            self._drained.set()


def signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def start_error(error: Exception, argv: Sequence[str], cwd: str | None) -> StepError:
    """Create the error of a process that could not be started."""
    if isinstance(error, OSError) and cwd is not None and error.filename == cwd:
        return StepError("INVALID_INPUT", f"cwd: {cwd}: {error.strerror}.", retryable=False)
    if isinstance(error, ValueError):
        return StepError("INVALID_INPUT", f"Invalid command: {error}.", retryable=False)
    size = sum(map(len, argv))
    return StepError("START_FAILED", f"Starting the process failed ({size:,} characters of command): {error}.")
