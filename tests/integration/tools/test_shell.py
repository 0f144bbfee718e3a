"""shell steps with real commands: results, output, child processes and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runwright.contract.plan import Step
from runwright.tools.base import Lane, StepContext, StepError
from runwright.tools.shell import ShellInputs, ShellTool
from support.engine import engine, wait_for_end
from support.waiting import until

TOOL = ShellTool()
STEP = Step(step_id="s", kind="shell")


class Output:
    def __init__(self) -> None:
        self.parts: list[tuple[str, bytes]] = []
        self.size = 0

    def __call__(self, stream: str, data: bytes) -> None:
        self.size += len(data)
        if self.size < 1_000_000:
            self.parts.append((stream, data))

    def text(self, stream: str) -> str:
        return b"".join(data for name, data in self.parts if name == stream).decode()


def context(write: Any = lambda *_: None) -> StepContext:
    return StepContext(
        run_id="run 1",
        step_id="s[3]",
        attempt=2,
        engine_attempt=1,
        write=write,
        save=lambda _: None,
    )


async def run(command: Any, *, write: Any = lambda *_: None, **inputs: Any) -> Any:
    return await TOOL.run(msgspec.convert({"command": command, **inputs}, ShellInputs), context(write))


async def failure(command: Any, **inputs: Any) -> StepError:
    with pytest.raises(StepError) as caught:
        await run(command, **inputs)
    return caught.value


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def has_ended(pid: int) -> bool:
    for _ in range(200):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_result_has_exit_code_and_end_of_output() -> None:
    assert await run("echo hello; echo there") == {"exitCode": 0, "stdout": "hello\nthere\n"}
    assert await run("true") == {"exitCode": 0, "stdout": ""}


async def test_json_on_the_last_line_becomes_the_result() -> None:
    assert await run("echo working; echo '{\"rows\": [1, 2]}'; echo") == {"rows": [1, 2]}
    assert await run("echo '[1]'") == [1]
    assert await run("echo 5") == {"exitCode": 0, "stdout": "5\n"}
    assert await run("echo '{oops'") == {"exitCode": 0, "stdout": "{oops\n"}


async def test_a_long_last_line_of_json_is_read_whole() -> None:
    rows = list(range(50_000))
    script = f"import json; print('x' * 100000); print(json.dumps(list(range({len(rows)}))))"
    assert await run([sys.executable, "-c", script]) == rows


async def test_long_stdout_is_the_result_in_full() -> None:
    result = await run("seq 1 50000")
    assert result["stdout"].split() == [str(number) for number in range(1, 50_001)]
    assert result.keys() == {"exitCode", "stdout"}


async def test_output_above_the_limit_fails_the_step() -> None:
    tool = ShellTool(max_output=1000)
    with pytest.raises(StepError) as caught:
        await tool.run(ShellInputs("seq 1 5000"), context())
    assert (caught.value.code, caught.value.retryable) == ("OUTPUT_TOO_LARGE", False)
    assert "23,893 bytes" in caught.value.message
    assert len((await tool.run(ShellInputs("head -c 1000 /dev/zero | tr '\\0' x"), context()))["stdout"]) == 1000


async def test_json_on_the_last_line_is_the_result_of_long_output() -> None:
    tool = ShellTool(max_output=1000)
    assert await tool.run(ShellInputs("seq 1 5000; echo '{\"rows\": 5}'"), context()) == {"rows": 5}


async def test_binary_output_can_be_stored() -> None:
    result = await run([sys.executable, "-c", r"import os; os.write(1, b'a\x00b\xff\n')"])
    assert result["stdout"] == "a�b�\n"
    json.dumps(result)


async def test_output_is_reported_while_the_command_runs() -> None:
    output = Output()
    task = asyncio.create_task(run("echo first; echo second >&2; sleep 5", write=output))
    await until(lambda: len(output.parts) == 2)
    assert (output.text("out"), output.text("err")) == ("first\n", "second\n")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_list_is_run_without_a_shell() -> None:
    assert (await run(["echo", "$HOME; a  b", 3]))["stdout"] == "$HOME; a  b 3\n"


async def test_another_shell_can_be_selected() -> None:
    assert (await run("echo ${BASH_VERSION:+bash}", shell="bash"))["stdout"] == "bash\n"
    error = await failure("false; echo on", shell="bash -e")
    assert error.message == "exit code 1"


async def test_command_gets_engine_step_and_run_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    monkeypatch.setenv("BOTH", "1")
    names = "OURS BOTH NUMBER FLAG RUNWRIGHT_RUN_ID RUNWRIGHT_STEP_ID RUNWRIGHT_ATTEMPT RUNWRIGHT_IDEMPOTENCY_TOKEN"
    command = "pwd; for name in " + names + "; do printenv $name; done"
    result = await run(command, env={"BOTH": "2", "NUMBER": 3, "FLAG": True}, cwd=str(tmp_path))
    token = sha256(b"run 1|s[3]|2").hexdigest()
    assert result["stdout"].splitlines() == [str(tmp_path), "1", "2", "3", "true", "run 1", "s[3]", "2", token]


async def test_stdin_of_a_command_is_empty() -> None:
    assert (await run("cat; readlink /proc/self/fd/0"))["stdout"] == "/dev/null\n"


async def test_command_inherits_no_open_files() -> None:
    assert (await run("ls /proc/$$/fd"))["stdout"].split() == ["0", "1", "2"]


async def test_non_zero_exit_quotes_the_last_line_of_stderr() -> None:
    error = await failure("echo trying >&2; echo 'no such table' >&2; exit 3")
    assert (error.code, error.message, error.retryable) == ("EXIT_STATUS", "exit code 3: no such table", True)
    assert error.facts == {"exitCode": 3}


async def test_error_of_a_killed_command_names_the_signal() -> None:
    error = await failure("kill -SEGV $$")
    assert (error.code, error.message) == ("EXIT_STATUS", "killed by SIGSEGV")


async def test_missing_program_fails_with_exit_code_127() -> None:
    error = await failure(["runwright-no-such-program"])
    assert error.message.startswith("exit code 127: ")
    assert "not found" in error.message


async def test_missing_working_directory_is_named_in_the_error() -> None:
    error = await failure("true", cwd="/no/such/folder")
    assert (error.code, error.retryable) == ("INVALID_INPUT", False)
    assert "/no/such/folder" in error.message


@pytest.mark.parametrize(
    "inputs",
    [
        {"command": []},
        {"command": "x", "env": {"A=B": 1}},
        {"command": "a\0b"},
        {"command": "x", "shell": "'"},
        {"command": ["a\0b"]},
    ],
)
async def test_invalid_evaluated_inputs_are_not_retryable(inputs: dict[str, Any]) -> None:
    error = await failure(**inputs)
    assert (error.code, error.retryable) == ("INVALID_INPUT", False)


async def test_command_too_long_for_the_system_fails_to_start() -> None:
    error = await failure("true " + "x" * 3_000_000)
    assert error.code == "START_FAILED"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"command": "echo"}, None),
        ({"command": "  "}, "empty"),
        ({}, "`command` must be text"),
        ({"command": []}, "a list"),
        ({"command": ["a", {"b": 1}]}, "must be text or numbers"),
        ({"command": ["a", {"secret": "TOKEN"}, "{{ x }}", 1]}, None),
        ({"command": ["a"], "shell": "bash"}, "without a shell"),
        ({"command": "{{ params.command }}"}, "`| quote`"),
        ({"command": "{{ params.command }}", "unquoted": True}, None),
        ({"command": "x", "env": {"A": {"secret": "TOKEN"}, "B": "{{ b }}", "C": 1}}, None),
        ({"command": "x", "env": {"A": [1]}}, "env.A"),
        ({"command": "x", "env": {"A=B": "1"}}, "environment variable"),
        ({"command": "x", "env": "{{ params.env }}"}, None),
    ],
)
def test_invalid_inputs_are_found_before_anything_runs(inputs: dict[str, Any], message: str | None) -> None:
    problem = TOOL.check(inputs, STEP)
    assert (problem is None) if message is None else message in (problem or ""), problem


def test_command_uses_the_tool_loop_lane() -> None:
    assert TOOL.lane(ShellInputs(command="x"), STEP) is Lane.TOOL_LOOP
    assert TOOL.main_input == "command"


async def test_child_with_open_output_ends_with_its_command() -> None:
    started = time.monotonic()
    result = await run("sleep 60 & echo $!")
    assert time.monotonic() - started < 20
    assert await has_ended(int(result["stdout"]))


async def test_child_without_output_ends_with_its_command() -> None:
    result = await run("sleep 60 >/dev/null 2>&1 & echo $!")
    assert await has_ended(int(result["stdout"]))


async def test_child_in_its_own_session_does_not_delay_the_step() -> None:
    started = time.monotonic()
    result = await run("setsid sh -c 'echo $$; exec sleep 60' & sleep 0.2")
    child = int(result["stdout"])
    assert time.monotonic() - started < 20
    assert is_alive(child), "a child in its own session is not killed"
    os.kill(child, signal.SIGKILL)


async def test_cancel_sends_sigterm_to_the_process_group() -> None:
    output = Output()
    command = "trap 'echo stopping; exit 0' TERM; sleep 60 & echo $!; wait"
    task = asyncio.create_task(run(command, write=output))
    await until(lambda: output.text("out") != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    child, *rest = output.text("out").split()
    assert rest == ["stopping"]
    assert await has_ended(int(child))


async def test_command_that_ignores_sigterm_is_killed_after_grace() -> None:
    output, ctx = Output(), context()
    ctx.write, ctx.grace = output, 0.2
    task = asyncio.create_task(TOOL.run(ShellInputs(command="trap '' TERM; echo $$; while :; do sleep 1; done"), ctx))
    await until(lambda: output.text("out") != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await has_ended(int(output.text("out")))


async def test_second_cancel_does_not_wait_for_the_grace() -> None:
    output, ctx = Output(), context()
    ctx.write, ctx.grace = output, 600.0
    task = asyncio.create_task(TOOL.run(ShellInputs(command="trap '' TERM; echo $$; while :; do sleep 1; done"), ctx))
    await until(lambda: output.text("out") != "")
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await has_ended(int(output.text("out")))


async def test_stopped_command_can_be_cancelled() -> None:
    output = Output()
    task = asyncio.create_task(run("echo $$; kill -STOP $$", write=output))
    await until(lambda: output.text("out") != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)


async def test_100_mb_of_output_need_little_memory_and_block_no_step() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    output = Output()
    flood = asyncio.create_task(run("head -c 100000000 /dev/zero | tr '\\0' 'x'", write=output))
    beats = 0
    while not flood.done():
        assert (await run("echo ok"))["stdout"] == "ok\n"
        beats += 1
    with pytest.raises(StepError):
        await flood
    assert output.size == 100_000_000
    assert beats > 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80_000  # KiB


async def test_exit_status_reaped_elsewhere_is_not_a_success() -> None:
    stop = threading.Event()

    def reap_anything() -> None:
        while not stop.wait(0.001):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)

    reaper = threading.Thread(target=reap_anything)
    reaper.start()
    try:
        for _ in range(5):
            error = await failure("exit 3")
            assert error.code in ("PROCESS_DIED", "EXIT_STATUS")  # The code depends on which thread reaps first.
    finally:
        stop.set()
        reaper.join()


ENGINE = """
import asyncio, os, time
from runwright.tools.base import StepContext
from runwright.tools.shell import ShellInputs, ShellTool

def write(stream, data):
    if {forks} and os.fork() == 0:
        os.write(1, b"fork %d\\n" % os.getpid())
        os.close(1)
        time.sleep(60)
        os._exit(0)
    os.write(1, data)

context = StepContext(run_id="r", step_id="s", attempt=1, engine_attempt=1, write=write, save=print)
asyncio.run(ShellTool().run(ShellInputs(command={command!r}), context))
"""


def engine_with(command: str, *, forks: bool = False) -> subprocess.Popen[str]:
    script = ENGINE.format(command=command, forks=forks)
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_all_step_processes_end_when_the_engine_is_killed(sign: signal.Signals) -> None:
    command = "trap '' TERM HUP; sh -c 'echo $$; sleep 60; true' & sleep 60 & echo $! $$; wait"
    with engine_with(command) as engine:
        assert engine.stdout is not None
        pids = [int(word) for _ in range(2) for word in engine.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_alive, pids))
        engine.send_signal(sign)
    assert all(asyncio.run(has_ended(pid)) for pid in pids)


def test_surviving_fork_of_the_engine_keeps_no_step_alive() -> None:
    with engine_with("echo pid $$; sleep 60", forks=True) as engine:
        assert engine.stdout is not None
        pids = dict(engine.stdout.readline().split() for _ in range(2))
        engine.kill()
    try:
        assert is_alive(int(pids["fork"]))
        assert asyncio.run(has_ended(int(pids["pid"])))
    finally:
        os.kill(int(pids["fork"]), signal.SIGKILL)


async def test_stored_plan_with_an_unquoted_expression_still_runs(store: str) -> None:
    """Plans are checked when they are read; runs that exist continue with their plan."""
    async with engine(store) as operations:
        shell = {"command": "echo {{ params.name }}", "unquoted": True}
        plan = operations.load({"plan": "p", "params": {"name": "you"}, "steps": [{"id": "a", "shell": shell}]})
        step = plan.steps[0]
        stored = msgspec.structs.replace(step, inputs={"command": "echo {{ params.name }}"})
        run_id = await operations.start(msgspec.structs.replace(plan, steps=[stored]))
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert await operations.result(run_id, "a") == {"exitCode": 0, "stdout": "you\n"}
