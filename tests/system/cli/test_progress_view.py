"""Progress view of a run: its content, its size and its repainting."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from rich.text import Text

import runwright as rw
from runwright.cli.event_text import EventFormatter
from runwright.cli.hints import CommandHints
from runwright.cli.run_view import RunView
from runwright.cli.session import Session
from runwright.cli.terminal.formatting import format_duration, format_elapsed, strip_ansi
from runwright.cli.terminal.graph_layout import layout_rows
from runwright.cli.terminal.progress_view import ProgressView, format_running_time
from runwright.cli.terminal.screen import Screen
from runwright.contract.plan import ExecutionPlan, Foreach, Order, PlanMetadata, Retry, Step
from runwright.contract.playbook import Route, Task
from runwright.contract.timestamps import from_micros, to_micros
from support.events import History
from support.paths import RECORDED_RUN
from support.terminal import Terminal, TerminalScreen


def graph(**needs: list[str]) -> ExecutionPlan:
    steps = tuple(Step(step_id=name, kind="shell", depends_on=tuple(names)) for name, names in needs.items())
    return ExecutionPlan(metadata=PlanMetadata(plan_id="p"), order=Order.GRAPH, steps=steps)


def tree(plan: ExecutionPlan) -> list[str]:
    return [before + name for name, before in layout_rows(plan, 40)]


def test_a_chain_reads_downwards_and_does_not_indent() -> None:
    assert tree(graph(a=[], b=["a"], c=["b"])) == ["a", "b", "c"]


def test_fork_indents_and_join_ends_the_indentation() -> None:
    plan = graph(a=[], b=["a"], c=["a"], d=["b"], e=["c", "d"], f=["e"])
    assert tree(plan) == ["a", "├─ b", "│  d", "└─ c", "e", "f"]


def test_dependencies_are_always_above_their_step() -> None:
    plan = graph(z=["b", "c"], a=[], b=["a"], c=["a", "b"], d=["a"], e=["d", "z"])
    order = [name for name, _ in layout_rows(plan, 40)]
    assert sorted(order) == sorted(step.step_id for step in plan.steps)
    for step in plan.steps:
        assert all(order.index(name) < order.index(step.step_id) for name in step.depends_on)


def test_a_tree_that_would_indent_too_far_is_a_list() -> None:
    needs: dict[str, list[str]] = {"s0": []}
    for depth in range(20):
        needs[f"s{depth + 1}"] = [f"s{depth}"]
        needs[f"x{depth}"] = [f"s{depth}"]
    assert {before for _, before in layout_rows(graph(**needs), 30)} == {""}


class ViewedRun:
    """A run view that a test feeds with events."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.view = RunView("r", plan)
        self._history = History("r", plan_id=plan.plan_id)
        self._seq = 0
        self.records: list[rw.RunEventRecord] = []
        for event_type in ("RunQueued", "RunStarted"):
            self(event_type)

    def __call__(self, event_type: str, step_id: str | None = None, attempt: int = 1, **payload: object) -> None:
        write = self._history(event_type, step_id, attempt, **payload)
        self._seq += 1
        more = {"run_seq": self._seq, "persisted_at": write.emitted_at, "hash": "00"}
        fields = {name: getattr(write, name) for name in write.__struct_fields__}
        self.records.append(rw.RunEventRecord(**fields, **more))
        self.view.fold(self.records[-1])
        self.now = to_micros(write.emitted_at)

    def step_lines(self) -> list[str]:
        """Return the event lines of the steps."""
        formatter = EventFormatter(None)
        return [formatter.line(record).partition("  ")[2] for record in self.records if record.step_id is not None]

    def shown(self, width: int = 100, height: int = 30, tails: dict[str, str] | None = None) -> list[str]:
        lines = ProgressView(self.view).lines((width, height), self.now, tails or {}, [Text("footer")])
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)
        return [line.plain.rstrip() for line in lines]


@pytest.fixture
def run() -> ViewedRun:
    steps = (
        Step(step_id="extract", kind="shell"),
        Step(step_id="flaky", kind="python", retry=Retry(max_attempts=4)),
        Step(step_id="fan", kind="shell", foreach=Foreach(items=[1])),
        Step(step_id="nap", kind="wait"),
    )
    return ViewedRun(ExecutionPlan(metadata=PlanMetadata(plan_id="orders"), order=Order.SEQUENTIAL, steps=steps))


def line_of(shown: list[str], step_id: str) -> str:
    return next(line for line in shown if f" {step_id} " in f"{line} ")


def test_a_step_shows_its_attempt_its_next_try_and_its_error(run: ViewedRun) -> None:
    run("StepStarted", "flaky")
    assert "attempt" not in line_of(run.shown(), "flaky")
    run("StepFailed", "flaky", error={"code": "EXIT_STATUS", "message": "exit code 7"})
    run("StepRetryScheduled", "flaky", nextAttemptAt="2999-01-01T00:00:00Z")
    line = line_of(run.shown(), "flaky")
    assert line.startswith("↻ flaky")
    assert "attempt 2/4 in " in line
    assert "EXIT_STATUS exit code 7" in line
    assert "RUNNING RETRYING  orders  r" in run.shown()[0]
    run("StepStarted", "flaky", 2)
    assert "attempt 2/4" in line_of(run.shown(), "flaky")


def test_playbook_step_shows_its_task_next_attempt_and_error() -> None:
    route = Route(tasks=(Task(label="prep", kind="shell"), Task(label="call", kind="shell")))
    step = Step(step_id="fetch", kind="pipeline", route=route)
    run = ViewedRun(ExecutionPlan(metadata=PlanMetadata(plan_id="p"), order=Order.ROUTED, steps=(step,)))
    run("StepStarted", "fetch@2")
    run("TaskStarted", "fetch@2/call")
    line = line_of(run.shown(tails={"fetch@2": "dialling"}), "fetch@2")
    assert "shell > shell" in line, "further visits belong to the same step"
    assert line.endswith("call  dialling")
    error = {"code": "EXIT_STATUS", "message": "exit code 3"}
    run("TaskAttemptFailed", "fetch@2/call", outcome={"status": "error", "error": error})
    run("PolicyTaskEvaluated", "fetch@2/call", action={"do": "retry"}, next_attempt_at="2999-01-01T00:00:00Z")
    assert "call  attempt 2 in " in line_of(run.shown(), "fetch@2")
    assert line_of(run.shown(), "fetch@2").endswith("EXIT_STATUS exit code 3")
    run("TaskAttemptStarted", "fetch@2/call", 2)
    assert "call  attempt 2  EXIT_STATUS" in line_of(run.shown(), "fetch@2")
    run("StepCompleted", "fetch@2")
    assert "call" not in line_of(run.shown(), "fetch@2")


def test_cancelled_run_shows_no_pending_retry(run: ViewedRun) -> None:
    run("StepStarted", "flaky")
    run("StepFailed", "flaky", error={"code": "E"})
    run("StepRetryScheduled", "flaky", nextAttemptAt="2999-01-01T00:00:00Z")
    run("RunCancelled")
    assert line_of(run.shown(), "flaky").startswith("✘ flaky")
    assert " in " not in line_of(run.shown(), "flaky")


def test_loop_shows_its_progress(run: ViewedRun) -> None:
    run("StepStarted", "fan")
    run("LoopStarted", "fan", total=8)
    for index in range(3):
        run("LoopIterationStarted", f"fan[{index}]", index=index)
        run("LoopIterationDone", f"fan[{index}]", index=index)
    line = line_of(run.shown(tails={"fan": "table 3"}), "fan")
    assert "3/8" in line
    assert line.endswith("table 3")
    assert "━━━━╸───────" in line


def test_wait_shows_the_remaining_time(run: ViewedRun) -> None:
    run("StepStarted", "nap")
    run("StepDelayed", "nap", scheduledAt="2999-01-01T00:00:00Z")
    assert line_of(run.shown(), "nap").endswith(" h left")


def test_columns_stay_where_they_are(run: ViewedRun) -> None:
    before = [line.index("  shell") for line in run.shown() if "shell" in line]
    run("StepStarted", "extract")
    run("StepCompleted", "extract")
    after = [line.index("  shell") for line in run.shown(tails={"extract": "a line " * 30}) if "shell" in line]
    assert len({*before, *after}) == 1


def test_control_characters_in_step_output_are_escaped(run: ViewedRun) -> None:
    run("StepStarted", "extract")
    shown = "\n".join(run.shown(tails={"extract": "50%\r\x1b[31m100%\x1b[0m\x07 done\x1b]0;title\x07"}))
    assert "100%\\x07 done" in shown
    assert not set(shown) & {"\x1b", "\x07", "\r"}
    assert strip_ansi("a\tb") == "a       b"


@pytest.mark.parametrize(("width", "height"), [(99, 29), (59, 19), (30, 8), (20, 3), (200, 5)])
def test_large_plan_fits_the_size_of_the_terminal(width: int, height: int) -> None:
    run = ViewedRun(graph(**{f"step-{number:04}": [] for number in range(1000)}))
    for number in range(400):
        run("StepStarted", f"step-{number:04}")
        if number % 10 != 9:
            run("StepCompleted", f"step-{number:04}")
        elif number % 20 == 9:
            run("StepFailed", f"step-{number:04}", error={"code": "E", "message": "long " * 100})
    shown = run.shown(width, height)
    if height > 10 and width > 50:
        assert "✘ step-0389" in "\n".join(shown)
        assert "● step-0019" in "\n".join(shown)
        assert shown[-3].strip() == "360 done · 20 running · 20 failed · 600 pending"[: width - 3]


def test_run_without_a_plan_shows_the_steps_of_its_events() -> None:
    run = ViewedRun(ExecutionPlan(metadata=PlanMetadata(plan_id="p"), order=Order.SEQUENTIAL, steps=()))
    run.view.plan = None
    run("StepStarted", "a")
    assert line_of(run.shown(), "a").startswith("● a")


def test_running_time_is_formatted_by_magnitude() -> None:
    assert [format_running_time(seconds) for seconds in (0, 59.94, 61, 3661)] == [
        "0.0 s",
        "59.9 s",
        "1:01 min",
        "1:01:01 h",
    ]


def test_repainting_leaves_only_the_last_frame(capsys: pytest.CaptureFixture[str]) -> None:
    screen, picture = Screen(), TerminalScreen()
    frames = [["a", "bb", "c"], ["a", "b", "c"], ["a", "x"], ["aaaa", "x", "y", "z"], []]
    for frame in frames:
        screen.paint([Text(line) for line in frame])
        picture.feed(capsys.readouterr().out)
        assert picture.text == "\n".join(frame)
    screen.paint([Text("one")])
    screen.print_above("said\ntwice")
    screen.paint([Text("two"), Text("three")])
    picture.feed(capsys.readouterr().out)
    assert picture.text == "said\ntwice\ntwo\nthree"


def test_step_waiting_for_a_worker_shows_its_queue(run: ViewedRun) -> None:
    run("StepScheduled", "extract", queue="gpu")
    assert line_of(run.shown(), "extract").endswith("waits for a worker on queue gpu")
    run("StepStarted", "extract", worker="token/w1")
    assert "waits" not in line_of(run.shown(), "extract")
    assert run.step_lines() == ["step extract waits for a worker on queue gpu", "step extract started on token/w1"]


def test_only_lines_that_changed_are_painted(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.paint([Text("same"), Text("old")])
    capsys.readouterr()
    screen.paint([Text("same"), Text("new")])
    assert "same" not in capsys.readouterr().out


def test_every_recorded_event_has_a_one_line_description(run: ViewedRun) -> None:
    recorded = RECORDED_RUN
    for number, line in enumerate(recorded.read_text().splitlines(), start=1):
        fields = json.loads(line)
        fields |= {"runSeq": number, "persistedAt": fields["emittedAt"], "hash": "00"}
        record = msgspec.json.decode(json.dumps(fields), type=rw.RunEventRecord)
        assert record.event_type not in EventFormatter(None).line(record)
        assert "\n" not in EventFormatter(None).line(record)


def test_command_hints_are_complete_and_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNWRIGHT_STORE", raising=False)
    assert CommandHints(Session(None, as_json=False), "r").retry("s") == "runwright retry r s"
    named = CommandHints(Session("sqlite:///x y.db", as_json=False), "a 'b'")
    assert named.rerun == "runwright rerun 'a '\"'\"'b'\"'\"'' --store 'sqlite:///x y.db'"


def test_terminal_run_shows_progress_and_a_summary(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "plan: small\nsteps:\n  - {id: one, shell: 'echo first words; sleep 0.4'}\n  - {id: two, shell: 'echo last words'}\n"
    )
    terminal = Terminal(tmp_path, "run", "p.yaml", "--run-id", "r1", columns=80, lines=24)
    terminal.wait_for("RUNNING  small  r1")
    assert not terminal.echoes()
    terminal.wait_for("COMPLETED", "2 steps: 2 done")
    assert terminal.end() == 0
    assert "\x1b[32m" in terminal.output
    shown = terminal.screen.text.splitlines()
    assert shown[0].startswith("COMPLETED  small  r1")
    assert shown[1].endswith("2/2 steps")
    assert shown[3].startswith("✔ one           shell")
    assert shown[3].endswith("first words")
    assert shown[4].endswith("last words")
    assert shown[6].startswith("COMPLETED  small  2 steps: 2 done")


def test_no_color_disables_colors(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("plan: small\nsteps:\n  - {id: one, shell: 'exit 1'}\n")
    terminal = Terminal(tmp_path, "run", "p.yaml", NO_COLOR="1")
    terminal.wait_for("retry:")
    assert terminal.end() == 1
    assert "\x1b[3" not in terminal.output


@pytest.mark.parametrize(
    ("millis", "shown"),
    [(0.4, "0 ms"), (170.9, "170 ms"), (999.9, "999 ms"), (59_999.9, "60.0 s"), (61_000, "1 min 01 s")],
)
def test_durations_and_elapsed_times_are_formatted_alike(millis: float, shown: str) -> None:
    start = 1_700_000_000_000_000
    assert format_duration(millis) == shown
    assert format_elapsed(from_micros(start), from_micros(start + int(millis * 1000))) == shown
