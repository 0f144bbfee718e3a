"""A process of a step: in a session of its own, its output read as it comes, stopped with all its children.

What a step starts ends with it. Once the process itself has ended, children that it left behind get a moment to
finish their output; then their group is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from .base import StepError
from .warden import WARDEN, reporting

LINGER = 0.5
"""How long, in seconds, children may hold the output open after their parent has ended."""

_BLOCK = 64 * 1024
_POLL = 0.02


class ChildProcess:
    """Belongs to the loop that it was started on. That loop's thread must stay free: it reads the output."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str],
        cwd: str | None = None,
        pass_fds: Sequence[int] = (),
        write: Callable[[str, bytes], None],
    ) -> None:
        with WARDEN.ear() as ear:
            self._popen = subprocess.Popen(  # noqa: S603 - running the plan author's command is what this is for
                reporting(list(argv)),
                stdin=ear,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=env,
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._lost = False  # how it ended
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
        """Wait for its end and give back its exit status, negative for a signal.

        Cancelled, it asks the whole group to stop, and after `grace()` seconds, or when cancelled again, kills it.
        """
        try:
            await self._ended()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await self._drained.wait()
        except asyncio.CancelledError:
            await self._stop(grace())
            raise
        finally:
            status = self._bury()
        return status

    def kill(self) -> None:
        """Kill it and all its children. Somebody must be waiting for its end."""
        self._signal(signal.SIGKILL)

    async def _ended(self) -> None:
        """Wait until the process itself has ended. It is not reaped, so that its number stays its own."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or an old one; or somebody else reaped it
            while not self._look():  # noqa: ASYNC110 - nothing tells us
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
        self._signal(signal.SIGCONT)  # one that was halted could not hear it
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(grace):
                await self._ended()
                await self._drained.wait()
        self._signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(1):
                await self._ended()

    def _bury(self) -> int:
        """Kill what is left, read what is left, and reap."""
        self._signal(signal.SIGKILL)
        for descriptor in list(self._pipes):
            for _ in range(32):  # what is in the pipe, and no more: somebody who fled the group may go on for ever
                if descriptor in self._pipes and not self._read(descriptor):
                    break
            self._close(descriptor)
        WARDEN.forget(self.pid)
        return self._reap()

    def _reap(self) -> int:
        # It has ended, unless the kernel cannot kill it: then it is left behind, for nobody may wait here.
        if not self._look():
            self._popen.returncode = -signal.SIGKILL
        if self._lost:
            raise StepError("PROCESS_DIED", "The process ended, and how was lost: other code of ours reaped it.")
        return self._popen.returncode

    def _look(self) -> bool:
        """Whether it has ended. Not asked of Popen, which takes a status that somebody else has reaped for success."""
        if self._popen.returncode is not None:
            return True
        try:
            found, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self._lost = True
            self._popen.returncode = -signal.SIGKILL
            return True
        if found:
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        return bool(found)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _read(self, descriptor: int) -> bool:
        """Take a block of output. Whether there was any."""
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


def start_trouble(error: Exception, argv: Sequence[str], cwd: str | None) -> StepError:
    """What it means that a process could not be started."""
    if isinstance(error, OSError) and cwd is not None and error.filename == cwd:
        return StepError("INVALID_INPUT", f"cwd: {cwd}: {error.strerror}.", retryable=False)
    if isinstance(error, ValueError):
        return StepError("INVALID_INPUT", f"The command cannot be run: {error}.", retryable=False)
    size = sum(map(len, argv))
    return StepError("START_FAILED", f"The process could not be started ({size:,} characters of command): {error}.")
