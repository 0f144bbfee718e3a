"""The picture of a run: what it shows, that it fits, and that painting it leaves no traces."""

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


def test_a_fork_indents_and_a_join_comes_back_out() -> None:
    plan = graph(a=[], b=["a"], c=["a"], d=["b"], e=["c", "d"], f=["e"])
    assert tree(plan) == ["a", "├─ b", "│  d", "└─ c", "e", "f"]


def test_what_a_step_needs_always_stands_above_it() -> None:
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


class Told:
    """A story told by hand."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.story = RunView("r", plan)
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
        self.story.fold(self.records[-1])
        self.now = to_micros(write.emitted_at)

    def words(self) -> list[str]:
        """Of its steps."""
        narrator = EventFormatter(None)
        return [narrator.line(record).partition("  ")[2] for record in self.records if record.step_id is not None]

    def shown(self, width: int = 100, height: int = 30, tails: dict[str, str] | None = None) -> list[str]:
        lines = ProgressView(self.story).lines((width, height), self.now, tails or {}, [Text("footer")])
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)
        return [line.plain.rstrip() for line in lines]


@pytest.fixture
def told() -> Told:
    steps = (
        Step(step_id="extract", kind="shell"),
        Step(step_id="flaky", kind="python", retry=Retry(max_attempts=4)),
        Step(step_id="fan", kind="shell", foreach=Foreach(items=[1])),
        Step(step_id="nap", kind="wait"),
    )
    return Told(ExecutionPlan(metadata=PlanMetadata(plan_id="orders"), order=Order.SEQUENTIAL, steps=steps))


def line_of(shown: list[str], step_id: str) -> str:
    return next(line for line in shown if f" {step_id} " in f"{line} ")


def test_a_step_shows_its_attempt_its_next_try_and_its_error(told: Told) -> None:
    told("StepStarted", "flaky")
    assert "attempt" not in line_of(told.shown(), "flaky")
    told("StepFailed", "flaky", error={"code": "EXIT_STATUS", "message": "exit code 7"})
    told("StepRetryScheduled", "flaky", nextAttemptAt="2999-01-01T00:00:00Z")
    line = line_of(told.shown(), "flaky")
    assert line.startswith("↻ flaky")
    assert "attempt 2/4 in " in line
    assert "EXIT_STATUS exit code 7" in line
    assert "RUNNING RETRYING  orders  r" in told.shown()[0]
    told("StepStarted", "flaky", 2)
    assert "attempt 2/4" in line_of(told.shown(), "flaky")


def test_a_step_of_a_playbook_shows_its_task_its_next_try_and_why() -> None:
    route = Route(tasks=(Task(label="prep", kind="shell"), Task(label="call", kind="shell")))
    step = Step(step_id="fetch", kind="pipeline", route=route)
    told = Told(ExecutionPlan(metadata=PlanMetadata(plan_id="p"), order=Order.ROUTED, steps=(step,)))
    told("StepStarted", "fetch@2")
    told("TaskStarted", "fetch@2/call")
    line = line_of(told.shown(tails={"fetch@2": "dialling"}), "fetch@2")
    assert "shell > shell" in line, "further visits are of the same step"
    assert line.endswith("call  dialling")
    error = {"code": "EXIT_STATUS", "message": "exit code 3"}
    told("TaskAttemptFailed", "fetch@2/call", outcome={"status": "error", "error": error})
    told("PolicyTaskEvaluated", "fetch@2/call", action={"do": "retry"}, next_attempt_at="2999-01-01T00:00:00Z")
    assert "call  attempt 2 in " in line_of(told.shown(), "fetch@2")
    assert line_of(told.shown(), "fetch@2").endswith("EXIT_STATUS exit code 3")
    told("TaskAttemptStarted", "fetch@2/call", 2)
    assert "call  attempt 2  EXIT_STATUS" in line_of(told.shown(), "fetch@2")
    told("StepCompleted", "fetch@2")
    assert "call" not in line_of(told.shown(), "fetch@2")


def test_a_retry_that_never_comes_is_not_announced_once_the_run_has_ended(told: Told) -> None:
    told("StepStarted", "flaky")
    told("StepFailed", "flaky", error={"code": "E"})
    told("StepRetryScheduled", "flaky", nextAttemptAt="2999-01-01T00:00:00Z")
    told("RunCancelled")
    assert line_of(told.shown(), "flaky").startswith("✘ flaky")
    assert " in " not in line_of(told.shown(), "flaky")


def test_a_loop_shows_how_far_it_is(told: Told) -> None:
    told("StepStarted", "fan")
    told("LoopStarted", "fan", total=8)
    for index in range(3):
        told("LoopIterationStarted", f"fan[{index}]", index=index)
        told("LoopIterationDone", f"fan[{index}]", index=index)
    line = line_of(told.shown(tails={"fan": "table 3"}), "fan")
    assert "3/8" in line
    assert line.endswith("table 3")
    assert "━━━━╸───────" in line


def test_a_wait_shows_what_is_left_of_it(told: Told) -> None:
    told("StepStarted", "nap")
    told("StepDelayed", "nap", scheduledAt="2999-01-01T00:00:00Z")
    assert line_of(told.shown(), "nap").endswith(" h left")


def test_columns_stay_where_they_are(told: Told) -> None:
    before = [line.index("  shell") for line in told.shown() if "shell" in line]
    told("StepStarted", "extract")
    told("StepCompleted", "extract")
    after = [line.index("  shell") for line in told.shown(tails={"extract": "a line " * 30}) if "shell" in line]
    assert len({*before, *after}) == 1


def test_text_of_steps_cannot_take_over_the_terminal(told: Told) -> None:
    told("StepStarted", "extract")
    shown = "\n".join(told.shown(tails={"extract": "50%\r\x1b[31m100%\x1b[0m\x07 done\x1b]0;title\x07"}))
    assert "100%\\x07 done" in shown
    assert not set(shown) & {"\x1b", "\x07", "\r"}
    assert strip_ansi("a\tb") == "a       b"


@pytest.mark.parametrize(("width", "height"), [(99, 29), (59, 19), (30, 8), (20, 3), (200, 5)])
def test_a_big_plan_never_needs_more_lines_than_there_are(width: int, height: int) -> None:
    told = Told(graph(**{f"step-{number:04}": [] for number in range(1000)}))
    for number in range(400):
        told("StepStarted", f"step-{number:04}")
        if number % 10 != 9:
            told("StepCompleted", f"step-{number:04}")
        elif number % 20 == 9:
            told("StepFailed", f"step-{number:04}", error={"code": "E", "message": "long " * 100})
    shown = told.shown(width, height)
    if height > 10 and width > 50:
        assert "✘ step-0389" in "\n".join(shown)
        assert "● step-0019" in "\n".join(shown)
        assert shown[-3].strip() == "360 done · 20 running · 20 failed · 600 pending"[: width - 3]


def test_a_run_whose_plan_is_not_known_shows_what_its_events_name() -> None:
    told = Told(ExecutionPlan(metadata=PlanMetadata(plan_id="p"), order=Order.SEQUENTIAL, steps=()))
    told.story.plan = None
    told("StepStarted", "a")
    assert line_of(told.shown(), "a").startswith("● a")


def test_times_that_tick() -> None:
    assert [format_running_time(seconds) for seconds in (0, 59.94, 61, 3661)] == [
        "0.0 s",
        "59.9 s",
        "1:01 min",
        "1:01:01 h",
    ]


def test_painting_over_leaves_what_was_painted_last(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_step_that_waits_for_a_worker_says_so(told: Told) -> None:
    told("StepScheduled", "extract", queue="gpu")
    assert line_of(told.shown(), "extract").endswith("waits for a worker on queue gpu")
    told("StepStarted", "extract", worker="token/w1")
    assert "waits" not in line_of(told.shown(), "extract")
    assert told.words() == ["step extract waits for a worker on queue gpu", "step extract started on token/w1"]


def test_only_lines_that_changed_are_painted(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.paint([Text("same"), Text("old")])
    capsys.readouterr()
    screen.paint([Text("same"), Text("new")])
    assert "same" not in capsys.readouterr().out


def test_every_event_type_has_words(told: Told) -> None:
    recorded = RECORDED_RUN
    for number, line in enumerate(recorded.read_text().splitlines(), start=1):
        fields = json.loads(line)
        fields |= {"runSeq": number, "persistedAt": fields["emittedAt"], "hash": "00"}
        record = msgspec.json.decode(json.dumps(fields), type=rw.RunEventRecord)
        assert record.event_type not in EventFormatter(None).line(record)
        assert "\n" not in EventFormatter(None).line(record)


def test_commands_to_type_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNWRIGHT_STORE", raising=False)
    assert CommandHints(Session(None, as_json=False), "r").retry("s") == "runwright retry r s"
    named = CommandHints(Session("sqlite:///x y.db", as_json=False), "a 'b'")
    assert named.rerun == "runwright rerun 'a '\"'\"'b'\"'\"'' --store 'sqlite:///x y.db'"


def test_a_run_on_a_terminal_is_painted_and_summed_up(tmp_path: Path) -> None:
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


def test_no_color_means_none(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("plan: small\nsteps:\n  - {id: one, shell: 'exit 1'}\n")
    terminal = Terminal(tmp_path, "run", "p.yaml", NO_COLOR="1")
    terminal.wait_for("retry:")
    assert terminal.end() == 1
    assert "\x1b[3" not in terminal.output


@pytest.mark.parametrize(
    ("millis", "shown"),
    [(0.4, "0 ms"), (170.9, "170 ms"), (999.9, "999 ms"), (59_999.9, "60.0 s"), (61_000, "1 min 01 s")],
)
def test_a_time_is_cut_off_alike_wherever_it_is_shown(millis: float, shown: str) -> None:
    start = 1_700_000_000_000_000
    assert format_duration(millis) == shown
    assert format_elapsed(from_micros(start), from_micros(start + int(millis * 1000))) == shown
