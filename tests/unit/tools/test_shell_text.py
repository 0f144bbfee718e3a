"""Expressions in shell commands: a value must stay one word, or the plan is refused."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import runwright as rw
from runwright.control.plan_loader import read_data
from runwright.core.expressions.template import evaluate
from runwright.plans.problems import PlanInvalid
from runwright.tools.shell_text import unquoted_expression

QUOTED = "{{ params.name | quote }}"


def plan(shell: Any) -> dict[str, Any]:
    return {"plan": "p", "params": {"name": "you"}, "steps": [{"id": "a", "shell": shell}]}


def playbook(**task: Any) -> dict[str, Any]:
    return {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "p"},
        "workload": {"name": "you"},
        "workflow": [{"step": "a", "tool": {"kind": "shell", **task}}],
    }


REFUSED: list[dict[str, Any]] = [
    plan("echo hello {{ params.name }}"),
    plan("{{ params.name }}"),
    plan({"command": "echo {{ params.name | quote }} {{ params.name }}"}),
    plan({"command": "echo {{ params.name }}", "unquoted": False}),
    plan("echo {{ params.name | quote | upper }}"),
    playbook(command="echo {{ name }}"),
    playbook(cmds=["echo one", "echo {{ workload.name }}"]),
]


@pytest.mark.parametrize("document", REFUSED)
def test_an_unquoted_expression_in_a_command_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(PlanInvalid, match=r"must end in `\\| quote`") as caught:
        read_data(document)
    assert caught.value.code == rw.ErrorCode.UNQUOTED_EXPRESSION


@pytest.mark.parametrize(
    "command",
    [
        f"echo '{QUOTED}'",
        f'echo "hello {QUOTED}"',
        f"echo `date {QUOTED}`",
        f"echo \\{QUOTED}",
        f"true # {QUOTED}",
        f"cat <<END\n{QUOTED}\nEND",
        f"cat <<< {QUOTED}",
        f"echo $'it\\'s {QUOTED}'",
        f'echo "a\\" {QUOTED}"',
        f"echo ${QUOTED}",
        f"echo $\\\n{QUOTED}",
        f"echo ${{ {QUOTED} }}",
        f"echo ${{x:-'}}' {QUOTED}}}",
        f"echo $(( {QUOTED} + 1 ))",
        f"[[ {QUOTED} -eq 1 ]]",
        f'echo "$(basename "{QUOTED}")"',
        f"echo $'it\\' '{QUOTED}",
    ],
)
def test_a_quoted_expression_inside_of_quotes_is_refused(command: str) -> None:
    with pytest.raises(PlanInvalid, match="may not protect") as caught:
        read_data(plan(command))
    assert caught.value.code == rw.ErrorCode.UNQUOTED_EXPRESSION


@pytest.mark.parametrize(
    ("shell", "problem"),
    [
        ({"command": "echo hi", "shell": "{{ params.name }}"}, "`shell` must not contain an expression"),
        ({"command": f"print({QUOTED})", "shell": "python3"}, "POSIX shells only"),
        ({"command": f"echo {QUOTED}", "shell": "/usr/bin/env fish"}, "POSIX shells only"),
        (f"eval {QUOTED}", "executes it as code"),
        (f"true && sh -c {QUOTED}", "executes it as code"),
        (f"find . -exec /bin/bash -ec {QUOTED} \\;", "executes it as code"),
        (f"ssh host {QUOTED}", "executes it as code"),
        (f"echo {QUOTED} | python3 -c {QUOTED}", "executes it as code"),
    ],
)
def test_an_expression_that_is_executed_is_refused(shell: Any, problem: str) -> None:
    with pytest.raises(PlanInvalid, match=problem) as caught:
        read_data(plan(shell))
    assert caught.value.code == rw.ErrorCode.UNQUOTED_EXPRESSION
    permitted = {"command": shell} if isinstance(shell, str) else shell
    read_data(plan({**permitted, "unquoted": True}))


@pytest.mark.parametrize(
    "shell",
    [
        f"echo hello {QUOTED}",
        f"grep -e {QUOTED} -c file; eval true; echo {QUOTED}",
        {"command": f"echo {QUOTED}", "shell": "/usr/bin/env bash -eu"},
        {"command": f"echo {QUOTED}", "shell": "bash -o pipefail"},
        f"echo 'a' {QUOTED} \"b\" ${{#name}} it\\'s {QUOTED}",
        f"echo a#b {QUOTED}",
        f"true # it's a comment\necho {QUOTED}",
        f"echo $(basename {QUOTED})",
        f'cd "${{HOME}}/$(date +%F)" && echo $((1 + 2)) ${{HOME%/}} {QUOTED} $? "$"',
        f"[[ -f x ]] || cat < {QUOTED} > [a-z]{QUOTED}",
        f"cat {QUOTED} <<END\ntext\nEND",
        {"command": "echo {{ params.name }}", "unquoted": True},
        ["echo", "hello {{ params.name }}"],
        {"command": 'echo "$NAME"', "env": {"NAME": "{{ params.name }}"}},
    ],
)
def test_commands_whose_values_are_words_are_accepted(shell: Any) -> None:
    read_data(plan(shell))


def test_playbooks_have_the_same_rule() -> None:
    read_data(playbook(command="echo {{ name | quote }}"))
    read_data(playbook(command="echo {{ name }}", unquoted=True))


def test_python_code_contains_no_expressions() -> None:
    steps = [{"id": "a", "python": {"code": "print({{ params.name }})"}}]
    with pytest.raises(PlanInvalid, match="pass values in `args`"):
        read_data({"plan": "p", "params": {"name": "1"}, "steps": steps})


CODE = "echo executed >&2"


@given(
    before=st.text(alphabet="ab '\"\\`#$;\n<~(){}[]=", max_size=8),
    value=st.sampled_from(["x", f"$({CODE})", f"'; {CODE}; '", f'"; {CODE}; "', f"`{CODE}`", f"x\n{CODE}\n", "#"]),
    shell=st.sampled_from(["/bin/sh", "/bin/bash"]),
)
@example(before="a$", value="x", shell="/bin/sh")
@example(before="$a", value="b", shell="/bin/sh")
@example(before="=;a=", value="x", shell="/bin/sh")
@example(before='"$(echo "', value=f"$({CODE})", shell="/bin/sh")
def test_an_accepted_expression_is_one_word_of_the_command(before: str, value: str, shell: str) -> None:
    """The shell is the judge: no value is executed, and as an argument it reaches the program unchanged."""
    command = f"printf %s {before}{QUOTED}"
    if "{{" in before or before.endswith("{") or unquoted_expression(command) is not None:
        return
    text = str(evaluate(command, {"params": {"name": value}}))
    done = subprocess.run([shell, "-c", text], capture_output=True, timeout=10)
    assert b"executed" not in done.stderr.splitlines()
    if done.returncode == 0 and not set(before) & set(";\n()<="):
        assert done.stdout.decode().endswith(value)
