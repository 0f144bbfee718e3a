"""Parent side of an isolated step: start its process, serve its requests and read its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading

import msgspec

from runwright.contract.refs import ErrorInfo
from runwright.storage.json_encoding import encode_result
from runwright.tools.base import STEP_RAISED, StepError
from runwright.tools.child_process import ChildProcess, signal_name, start_error

from .isolated_messages import ChildMessage, ParentReply, StepRequest
from .work import Outcome, Work, end_output, outcome_of_error, storable

_RECEIVE_BYTES = 256 * 1024
_EXIT_GRACE = 1.0
"""Seconds to wait for the last messages of a process that ended, and for the end of one that sent its outcome."""


async def run_isolated(work: Work) -> Outcome:
    """Run a step in a process of its own. Cancelling this coroutine stops the process."""
    try:
        return end_output(work, await _IsolatedProcess(work).run())
    except BaseException as error:
        return end_output(work, outcome_of_error(error, work.context))


class _IsolatedProcess:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._outcome_message: ChildMessage | None = None
        self._kill_timer: asyncio.TimerHandle | None = None

    async def run(self) -> Outcome:
        request = msgspec.json.encode(self._request()) + b"\n"
        parent_end, child_end = socket.socketpair()
        parent_end.setblocking(False)
        try:
            with child_end:
                child = self._start(child_end)
            serving = asyncio.create_task(self._serve(parent_end, request, child))
            try:
                status = await child.finish(lambda: self._work.context.grace)
            except asyncio.CancelledError:
                # A step that stopped in time may still have sent a result, which then counts.
                await _drain(serving)
                if self._outcome_message is None:
                    raise
                status = 0
            await _drain(serving)
        finally:
            parent_end.close()
            if self._kill_timer is not None:
                self._kill_timer.cancel()  # The process id may be reused by then.
        return self._read_outcome(status)

    def _request(self) -> StepRequest:
        work, context = self._work, self._work.context
        try:
            inputs = msgspec.Raw(encode_result(work.inputs))
        except Exception as error:
            message = f"Invalid inputs for an isolated step: {error}"
            raise StepError("INVALID_INPUT", message, retryable=False) from None
        return StepRequest(
            kind=work.tool.kind,
            inputs=inputs,
            sys_path=[entry or os.getcwd() for entry in sys.path],
            run_id=context.run_id,
            step_id=context.step_id,
            attempt=context.attempt,
            engine_attempt=context.engine_attempt,
            restored=context.restored,
            secrets=dict(context.secrets),
        )

    def _start(self, child_end: socket.socket) -> ChildProcess:
        argv = [sys.executable, "-m", "runwright.runtimes.executor.isolated_main", str(child_end.fileno())]
        context = self._work.context
        env, folder = {**os.environ, **context.environment()}, context.working_directory
        try:
            descriptors, write, lease_end = [child_end.fileno()], context.write, context.lease_end
            return ChildProcess(argv, env=env, cwd=folder, pass_fds=descriptors, write=write, lease_end=lease_end)
        except (OSError, ValueError) as error:
            raise start_error(error, argv, folder) from None

    async def _serve(self, channel: socket.socket, request: bytes, child: ChildProcess) -> None:
        """Send the request, reply to the child's requests, store its outcome. Ends when the child closes the socket."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(channel, request)
            rest = bytearray()
            while data := await loop.sock_recv(channel, _RECEIVE_BYTES):
                rest += data
                if b"\n" not in data:
                    continue
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    message = msgspec.json.decode(line, type=ChildMessage)
                    if message.kind in ("result", "error"):
                        self._outcome_message = message
                        # Threads of the step may prevent the process from ending.
                        self._kill_timer = loop.call_later(_EXIT_GRACE, child.kill)
                        continue
                    reply = await self._reply_in_thread(message)
                    await loop.sock_sendall(channel, msgspec.json.encode(reply) + b"\n")

    def _reply(self, message: ChildMessage) -> ParentReply:
        """Carry out a request that the step made while it runs."""
        context, body = self._work.context, msgspec.json.decode(message.body)
        if message.kind == "checkpoint":
            context.checkpoint(body)
            return ParentReply()
        if message.kind == "store":
            return ParentReply(result=context.keep(body["path"], body["kind"]))
        return ParentReply(result=context.fetch(body["ref"], body["target"]))

    async def _reply_in_thread(self, message: ChildMessage) -> ParentReply:
        """Call `_reply` in a thread, because it waits for a store."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ParentReply] = loop.create_future()

        def run() -> None:
            try:
                reply = self._reply(message)
            except BaseException as error:
                reply = ParentReply(outcome_of_error(error, self._work.context).error or ErrorInfo(STEP_RAISED))
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(reply))

        threading.Thread(target=run, name="isolated step request", daemon=True).start()
        return await future

    def _read_outcome(self, status: int) -> Outcome:
        message = self._outcome_message
        if message is not None and message.kind == "result":
            return Outcome(bytes(message.body), artifacts=tuple(message.artifacts))
        if message is not None:
            error = msgspec.json.decode(message.body, type=ErrorInfo)
            error = msgspec.structs.replace(error, message=storable(error.message or "", self._work.context))
            return Outcome(error=error, artifacts=tuple(message.artifacts))
        end = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
        raise StepError("PROCESS_DIED", f"The process of the step {end} before it returned a result.")


async def _drain(serving: asyncio.Task[None]) -> None:
    """Wait for the messages that the child sent before it ended."""
    done, _ = await asyncio.wait([serving], timeout=_EXIT_GRACE)
    if not done:
        serving.cancel()
    elif not serving.cancelled():
        # Retrieve the exception of an invalid message: the step wrote to our socket, so it has no readable outcome.
        serving.exception()
