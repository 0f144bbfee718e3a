"""Child process of a step: in a session of its own, its output read as it comes, stopped with all its children.

Processes that a step starts end with it. Once the child itself has ended, its own children get LINGER seconds to finish
their output; then their process group is killed.

They also end when this process dies, even by `kill -9`. A small shell, the guard, outlives this process by a moment.
Every child reports its process group to the guard before it does anything else, through a pipe that is open in this
process and the child. When the last writer is gone, the pipe ends and the guard kills every group still on its list,
including grandchildren. The parent-death signal of the kernel would reach only the child itself, only on Linux, and
would fire when the thread that started the child ends.

A child also checks, before it becomes the command, that the lease under which it was started is still held: this
process may have been stopped after its own check, and another one may have executed the step meanwhile.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence

from .base import StepError, StepNotStarted

LINGER = 0.5
"""Seconds for which grandchildren may hold the output open after the child has ended."""

_BLOCK = 64 * 1024
_POLL = 0.02

SHELL = "/bin/sh"

_WATCH = """
trap '' HUP INT QUIT TERM
alive=' '
while read -r mark group; do
  case $mark in
    +) alive="$alive$group " ;;
    -) case $alive in *" $group "*) alive="${alive%% $group *} ${alive#* $group }" ;; esac ;;
  esac
done
for group in $alive; do kill -s KILL -- "-$group"; done 2>/dev/null
"""

_REPORT = """
echo "+ $$" >&0
if [ "$1" ] && read -r now rest </proc/uptime && [ "${now%.*}${now#*.}" -gt "$1" ]; then echo "$2" >&2; exit 1; fi
shift 2
exec "$@" </dev/null
"""
"""Arguments: the time at which the lease ends, in hundredths of a second since boot, or an empty text; the line to
write instead of executing the command after that time; the command."""

_EXPIRED = os.urandom(16).hex()
_EXPIRED_LINE = f"{_EXPIRED}\n".encode()
_HAS_UPTIME = os.path.exists("/proc/uptime")


class ProcessGuard:
    """The guard shell of this process. Started with the first child, and again if it has exited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    @contextlib.contextmanager
    def report_pipe(self) -> Generator[int]:
        """Open the descriptor that a child must get as its standard input."""
        with self._lock:
            if self._shell is None or self._shell.poll() is not None:
                self._start()
            assert self._pipe is not None
            # A copy, so that `close` in another thread cannot close it while the child is being started.
            copy = os.dup(self._pipe)
        try:
            yield copy
        finally:
            os.close(copy)

    def release_group(self, group: int) -> None:
        """Remove a group that has ended. Call it before its leader is reaped, while the number cannot be reused."""
        with self._lock, contextlib.suppress(OSError):
            if self._pipe is not None:
                os.write(self._pipe, b"- %d\n" % group)

    def close(self) -> None:
        """End the guard; it kills the groups still on its list."""
        with self._lock:
            self._close_pipe()
            if self._shell is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._shell.wait(timeout=2)

    def reset_after_fork(self) -> None:
        """Close the pipe in a fork of this process: it belongs to the parent and must end with the parent."""
        self._lock = threading.Lock()
        self._close_pipe()
        if self._shell is not None:
            self._shell.returncode = 0  # it is not a child of the fork
            self._shell = None

    def _start(self) -> None:
        self._close_pipe()
        reader, self._pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(  # noqa: S603 - no external input
                [SHELL, "-c", _WATCH, "runwright-process-guard"],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={},
            )
        finally:
            os.close(reader)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def with_group_report(argv: list[str], lease_end: float = math.inf) -> list[str]:
    """Wrap a command so that it first reports its group to the guard, and checks its lease.

    Its stdin must be `report_pipe()`.
    """
    limit = str(int(lease_end * 100)) if _HAS_UPTIME and lease_end != math.inf else ""
    return [SHELL, "-c", _REPORT, "sh", limit, _EXPIRED, *argv]


PROCESS_GUARD = ProcessGuard()
atexit.register(PROCESS_GUARD.close)
os.register_at_fork(after_in_child=PROCESS_GUARD.reset_after_fork)


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
        lease_end: float = math.inf,
    ) -> None:
        with PROCESS_GUARD.report_pipe() as report_pipe:
            self._popen = subprocess.Popen(  # noqa: S603 - running the plan author's command is the purpose
                with_group_report(list(argv), lease_end),
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
        self._is_expired = False
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

        Raises StepNotStarted if the lease had expired before the command was executed.
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
        if self._is_expired:
            raise StepNotStarted
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
        if data == _EXPIRED_LINE:
            self._is_expired = True
        else:
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
