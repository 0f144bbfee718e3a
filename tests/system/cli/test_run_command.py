"""Commands that run plans: printed text, files and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import runwright as rw
from runwright.cli.param_option import parse_params
from runwright.contract.plan import ExecutionPlan, Order, PlanMetadata
from runwright.plans.loader import load_plan
from runwright.tools.registry import all_tools
from support.commands import SLOW, Project, parsed
from support.waiting import wait_until

HELLO = """
plan: hello
steps:
  - {id: greet, shell: "echo hello"}
"""
TROUBLE = """
plan: trouble
steps:
  - {id: fine, shell: "echo all is well"}
  - {id: bad, shell: "echo about to fall; echo no space left >&2; exit 3", retry: {maxAttempts: 2, initial: 10ms}}
  - {id: after, shell: "echo never"}
"""


def test_plan_runs_and_prints_one_line_per_event(project: Project) -> None:
    lines = project("run", project.plan(HELLO), "--run-id", "r1").splitlines()
    assert [line[25:] for line in lines[:3]] == [
        "run r1 of plan hello queued",
        "run r1 started",
        "step greet started",
    ]
    assert lines[-1].startswith("COMPLETED  hello  1 step: 1 done  in ")
    assert not any("\x1b" in line for line in lines)
    assert project("logs", "r1") == "greet | hello\n"
    assert project("logs", "r1", "greet") == "hello\n"
    (line,) = parsed(project("logs", "r1", "--json"))
    assert (line["entity"], line["attempt"], line["stream"], line["text"]) == ("greet", 1, "out", "hello")
    project("logs", "r1", "gret", exits=2)
    assert "STEP_NOT_FOUND" in project.stderr
    assert "'greet'" in project.stderr


def test_unvisited_playbook_steps_are_not_counted(project: Project) -> None:
    plan = project.plan(
        "{apiVersion: noetl.io/v10, kind: Playbook, metadata: {name: p}, workflow: ["
        "{step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: '{{ false }}'}, {step: c}]}},"
        "{step: b, tool: {kind: noop}}, {step: c, tool: {kind: noop}}]}"
    )
    lines = project("run", plan, "--run-id", "r1").splitlines()
    assert lines[-1].startswith("COMPLETED  p  2 steps: 2 done  in ")
    assert parsed(project("list", "--json"))[0]["totalSteps"] == 2


def test_json_output_is_one_event_per_line(project: Project) -> None:
    records = parsed(project("run", project.plan(HELLO), "--run-id", "r1", "--json"))
    assert [record["runSeq"] for record in records] == [1, 2, 3, 4, 5]
    assert records[-1]["eventType"] == "RunCompleted"
    assert records == parsed(project("events", "r1", "--json"))
    assert records == parsed(project("watch", "r1", "--json"))
    assert records == parsed(project("run", "plan.yaml", "--run-id", "r1", "--json"))


def test_failure_report_has_error_attempts_and_retry_command(project: Project) -> None:
    text = project("run", project.plan(TROUBLE), "--run-id", "r1", exits=1)
    report = text[text.index("FAILED step bad") :].splitlines()
    assert report[0] == "FAILED step bad  EXIT_STATUS exit code 3: no space left"
    assert sorted(report[1:3]) == ["  | about to fall", "  | no space left"]
    assert report[3].startswith("  attempt 1  ")
    assert report[4].startswith("  attempt 2  ")
    assert report[5].startswith("FAILED  trouble  3 steps: 1 done, 1 failed, 1 skipped")
    assert report[6] == "  retry:  runwright rerun r1"
    assert project("watch", "r1", exits=1).endswith("\n".join(report) + "\n")


def test_ended_run_is_not_repeated_and_keeps_its_exit_code(project: Project) -> None:
    project("run", project.plan(TROUBLE), "--run-id", "r1", exits=1)
    before = project("events", "r1", "--json")
    assert "retry:  runwright rerun r1" in project("run", "plan.yaml", "--run-id", "r1", exits=1)
    assert project("run", "--run-id", "r1", exits=1).startswith("FAILED step bad")
    assert project("events", "r1", "--json") == before
    project("run", project.plan(HELLO), "--run-id", "r1", exits=2)
    assert project.stderr.startswith("PLAN_MISMATCH")


def test_plan_errors_are_reported_together_and_make_no_store(project: Project) -> None:
    plan = project.plan("plan: p\nsteps:\n  - {id: a, shel: x}\n  - {id: a, shell: x, dependsOn: [q]}\n")
    project("run", plan, exits=2)
    assert [line.split(" ")[0] for line in project.stderr.splitlines()] == [
        "plan.yaml:3:13:", "plan.yaml:4:10:", "plan.yaml:4:35:",
    ]  # fmt: skip
    project("run", "nowhere.yaml", exits=2)
    assert project.stderr.startswith("PLAN_NOT_FOUND")
    (project.folder / "itself.yaml").symlink_to("itself.yaml")
    project("run", "itself.yaml", exits=2)
    assert project.stderr.startswith("PLAN_NOT_FOUND")
    assert not (project.folder / ".runwright").exists()
    project("run", exits=2)


def test_parameters_are_converted_to_the_type_of_the_default(project: Project) -> None:
    params = "{day: '2026-01-01', n: 3, on: false, tags: [a], any: null}"
    template = "{{ params.day }} {{ params.n + 1 }} {{ params.on }} {{ params.tags | join('+') }} {{ params.any }}"
    project.plan(
        f'plan: p\nparams: {params}\nsteps:\n  - id: s\n    python: {{code: "print(text)", args: {{text: "{template}"}}}}\n'
    )
    given = ("day=12", "n=4", "on=true", 'tags=["x","y"]', "any=hello")
    project("run", "plan.yaml", "--run-id", "r1", *(word for pair in given for word in ("--param", pair)))
    assert project("logs", "r1", "s") == "12 5 true x+y hello\n"
    project("run", "plan.yaml", "--param", "dy=1", exits=2)
    assert "Did you mean 'day'?" in project.stderr
    project("run", "plan.yaml", "--run-id", "r1", "--param", "day=13", exits=2)
    assert "PLAN_MISMATCH" in project.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("n=many", "a number"),
        ("on=yes", "true or false"),
        ("tags=x", "a list"),
        ("map=[]", "an object"),
        ("n", "name=value"),
    ],
)
def test_parameters_of_another_kind_are_refused(given: str, expected: str) -> None:
    plan = ExecutionPlan(
        metadata=PlanMetadata(plan_id="p"),
        params={"n": 1, "on": True, "tags": [], "map": {}},
        order=Order.SEQUENTIAL,
        steps=(),
    )
    with pytest.raises(rw.RunwrightError, match=expected):
        parse_params(plan, [given])


def test_killed_run_continues_from_its_log(project: Project) -> None:
    first = project.start("run", project.plan(SLOW), "--run-id", "r1")
    wait_until(lambda: project.lines_of("out.txt") == ["a", "b"])
    first.kill()
    first.communicate()
    project.continue_slow_step()
    text = project("run", "plan.yaml", "--run-id", "r1")
    assert text.startswith("Run r1 is RUNNING, at event 5.\n")
    assert "step a" not in text  # The first process printed its events.
    assert project.lines_of("out.txt") == ["a", "b", "b", "c"]
    kinds = [record["eventType"] for record in parsed(project("events", "r1", "--json"))]
    assert kinds.count("StepCompleted") == 3


@pytest.mark.parametrize(
    ("given", "value"), [("ids=[1,2]", [1, 2]), ("ids=5", 5), ("ids=x y", "x y"), ("ids=007", "007")]
)
def test_workload_accepts_additional_parameters(given: str, value: object) -> None:
    loaded = load_plan(
        "apiVersion: noetl.io/v10\nkind: Playbook\nmetadata: {name: p}\nworkload: {x: 1}\n"
        "workflow: [{step: a, tool: {kind: noop}}]",
        tools=all_tools(),
    )
    assert parse_params(loaded.plan, [given]) == {"ids": value}


def test_recover_continues_abandoned_runs_and_reports_if_none(project: Project) -> None:
    project("run", project.plan(HELLO))
    assert project("recover").startswith("Nothing to recover")
    project.plan(SLOW)
    processes = [project.start("run", "plan.yaml", "--run-id", name) for name in ("r1", "r2")]
    wait_until(lambda: project.lines_of("out.txt").count("b") == 2)
    processes[0].kill()  # One process crashes, the other is asked to stop.
    processes[1].terminate()
    stopped_output = processes[1].communicate()[0].decode()
    processes[0].communicate()
    assert processes[1].returncode == 143
    assert "runwright run --run-id r2" in stopped_output
    project.continue_slow_step()
    output = project("recover")
    assert "run r1 completed" in output
    assert "run r2 completed" in output
    assert {row["status"] for row in parsed(project("list", "--json"))} == {"COMPLETED"}
    assert json.loads(project("recover", "--json")) == {"runs": []}


def test_recover_does_not_wait_for_paused_runs(project: Project) -> None:
    process = project.start("run", project.plan(SLOW), "--run-id", "r1")
    wait_until(lambda: "b" in project.lines_of("out.txt"))
    project("pause", "r1")
    process.kill()
    process.communicate()
    assert parsed(project("list", "--json"))[0]["substatus"] == "RECOVERING"
    project.continue_slow_step()
    output = project("recover")
    assert "is PAUSED and waits to be resumed" in output
    assert "runwright resume r1" in output
    assert [(row["status"], row.get("substatus")) for row in parsed(project("list", "--json"))] == [("PAUSED", None)]


def test_second_process_watches_a_run_and_recovers_it(project: Project) -> None:
    first = project.start("run", project.plan(SLOW), "--run-id", "r1")
    wait_until(lambda: project.lines_of("out.txt") == ["a", "b"])
    second = project.start("run", "plan.yaml", "--run-id", "r1")
    watcher = project.start("watch", "r1")
    assert second.stdout is not None
    assert second.stdout.readline().startswith(b"Run r1 is RUNNING")
    assert b"Another process is driving this run" in second.stdout.readline()
    first.kill()
    first.communicate()
    assert b"has recovered it" in second.stdout.readline()
    project.continue_slow_step()
    assert b"COMPLETED" in second.communicate(timeout=20)[0]
    assert b"COMPLETED" in watcher.communicate(timeout=20)[0]
    assert (second.returncode, watcher.returncode) == (0, 0)


def test_ctrl_c_without_a_terminal_leaves_the_run(project: Project) -> None:
    process = project.start("run", project.plan(SLOW), "--run-id", "r1", "--json")
    wait_until(lambda: project.lines_of("out.txt") == ["a", "b"])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"runwright run --run-id r1" in err
    assert all(json.loads(line)["runId"] == "r1" for line in out.splitlines())
    assert project.snapshot()["status"] == "RUNNING"


def test_detach_returns_when_the_run_exists_and_has_a_driver(project: Project) -> None:
    assert project("run", project.plan(SLOW), "--detach", "--run-id", "r1") == "r1\n"
    assert project.snapshot("r1")["status"] == "RUNNING"
    project("run", project.plan(HELLO, "other.yaml"), "--detach", "--run-id", "r1", exits=2)
    assert "PLAN_MISMATCH" in project.stderr
    follower = project.start("logs", "r1", "--follow")
    project.continue_slow_step()
    assert follower.communicate(timeout=20)[0] == b"b | b is done\n"
    assert project("run", "plan.yaml", "--detach", "--run-id", "r1").startswith("COMPLETED  slow")
    (output,) = (project.folder / ".runwright" / "logs" / "r1").glob("*.txt")
    wait_until(lambda: "COMPLETED  slow" in output.read_text())
    started = json.loads(project("run", "other.yaml", "--detach", "--json"))
    assert project("watch", started["runId"]).splitlines()[-1].startswith("COMPLETED  hello")
    project("run", "other.yaml", "--detach", "--store", "memory://", exits=2)
    project("run", "other.yaml", "--detach", "--param", "x=1", exits=2)
    assert "Unknown parameter 'x'" in project.stderr


def test_detach_is_refused_while_another_driver_makes_progress(project: Project) -> None:
    """Events of the other driver are no sign that this one was accepted."""
    steps = "".join(f"  - {{id: s{number}, shell: 'sleep 0.1'}}\n" for number in range(40))
    project.start("run", project.plan(f"plan: many\nsteps:\n{steps}"), "--run-id", "r1")
    wait_until(lambda: "r1" in project("list", "--json", exits=None))
    project("run", project.plan(HELLO, "other.yaml"), "--detach", "--run-id", "r1", exits=2)
    assert "PLAN_MISMATCH" in project.stderr


def test_rerun_carries_over_completed_steps(project: Project) -> None:
    project.plan(
        "plan: p\nsteps:\n  - {id: a, shell: 'echo a >> out.txt'}\n  - {id: b, shell: 'echo b >> out.txt; test -e ok'}\n"
    )
    project("run", "plan.yaml", "--run-id", "r1", exits=1)
    (project.folder / "ok").touch()
    output = project("rerun", "r1", "--run-id", "r2")
    assert output.startswith("Run r2, rerun of r1.\n")
    assert "step a skipped: CARRIED_OVER" in output
    assert project.lines_of("out.txt") == ["a", "b", "b"]
    assert project.snapshot("r2")["originRunId"] == "r1"
    project("rerun", "r2", "--from", "b")
    project("rerun", "r2", "--force")
    assert project.lines_of("out.txt") == ["a", "b", "b", "b", "a", "b"]
    project("rerun", "r1", "--from", "nothing", exits=2)
    assert project.stderr.startswith("STEP_NOT_FOUND")


def test_run_continues_when_its_output_pipe_is_closed(project: Project) -> None:
    project.plan("plan: p\nsteps:\n" + "".join(f"  - {{id: s{n}, shell: 'echo {n} >> out.txt'}}\n" for n in range(30)))
    command = f"{sys.executable} -m runwright run plan.yaml --run-id r1 | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=project.folder, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
    assert len(project.lines_of("out.txt")) == 30


def test_show_lists_pending_steps_and_counts_iterations(project: Project) -> None:
    project.plan(
        "plan: p\nsteps:\n  - {id: fan, foreach: {in: [1, 2, 3], as: n}, shell: 'echo {{ n | quote }}'}\n"
        "  - {id: slow, shell: 'touch here; sleep 20'}\n  - {id: late, noop: {}}\n"
    )
    process = project.start("run", "plan.yaml", "--run-id", "r1")
    wait_until((project.folder / "here").exists)
    shown = {line.split()[0]: line for line in project("show", "r1").splitlines()}
    assert shown["fan"].endswith("3/3")
    assert shown["slow"].split()[1] == "RUNNING"
    assert shown["late"].split() == ["late", "PENDING"]
    assert sorted(project("logs", "r1", "fan").splitlines()) == ["fan[0] | 1", "fan[1] | 2", "fan[2] | 3"]
    assert project("logs", "r1", "fan[1]") == "2\n"
    project("cancel", "r1")
    process.communicate(timeout=20)
    assert process.returncode == 1
