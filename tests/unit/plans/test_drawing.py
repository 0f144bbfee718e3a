"""Drawings of a plan: every step and every arrow is drawn; large plans are drawn as a list."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.contract.plan import ExecutionPlan
from runwright.plans.drawing.layout import compute_layout, step_predecessors
from runwright.plans.drawing.text import graph_svg, graph_text
from runwright.plans.loader import plan_from_dict
from support.plan_kinds import KINDS

SVG = "{http://www.w3.org/2000/svg}"


def graph(order: str = "graph", **needs: str) -> ExecutionPlan:
    steps = [{"id": name, "noop": {}, "dependsOn": deps.split()} for name, deps in needs.items()]
    return plan_from_dict({"plan": "p", "order": order, "steps": steps}, KINDS).plan


def test_sequential_steps_are_drawn_in_one_lane() -> None:
    assert graph_text(graph("sequential", a="", b="", c="")) == "● a  noop\n│\n● b  noop\n│\n● c  noop\n"


def test_branch_and_join_are_drawn_with_two_lanes() -> None:
    assert graph_text(graph(extract="", load="extract", check="extract", report="load check")) == (
        "●   extract  noop\n"
        "├─╮\n"
        "│ ● load     noop\n"
        "● │ check    noop\n"
        "├─╯\n"
        "●   report   noop\n"
    )  # fmt: skip


def test_independent_steps_are_not_connected() -> None:
    assert graph_text(graph(a="", b="", c="b")) == "● a  noop\n\n● b  noop\n│\n● c  noop\n"


def test_arrows_are_drawn_behind_the_lanes_they_cross() -> None:
    assert graph_text(graph(a="", b="", c="", d="a", e="a b c d")) == (
        "●       a  noop\n"
        "│ ●     b  noop\n"
        "│ │ ●   c  noop\n"
        "├─│─│─╮\n"
        "│ │ │ ● d  noop\n"
        "├─┴─┴─╯\n"
        "●       e  noop\n"
    )  # fmt: skip


def test_loops_and_conditions_are_shown_in_labels() -> None:
    steps = [{"id": "a", "noop": {}, "foreach": [1], "when": True}]
    plan = plan_from_dict({"plan": "p", "steps": steps}, KINDS).plan
    assert graph_text(plan) == "● a  noop, for each, when\n"
    assert "noop · for each · when" in graph_svg(plan)


def test_more_than_200_steps_are_drawn_as_a_list() -> None:
    names = {f"s{number}": f"s{number - 1}" if number else "" for number in range(201)}
    lines = graph_text(graph(**names)).splitlines()
    assert lines[:2] == ["s0", "s1   <- s0"]
    assert len(lines) == 201


def test_graphs_that_are_too_wide_are_drawn_as_a_list() -> None:
    names = {
        "a": "",
        **{f"s{number}": "a" for number in range(60)},
        "z": " ".join(f"s{number}" for number in range(60)),
    }
    text = graph_text(graph(**names))
    assert "●" not in text
    assert text.splitlines()[-1].endswith("s9 and 50 more")


graphs = st.lists(st.lists(st.integers(0, 40), max_size=4), min_size=1, max_size=30).map(
    lambda rows: {
        f"step{number}": " ".join(sorted({f"step{source}" for source in row if source < number}))
        for number, row in enumerate(rows)
    }
)


def parse_arrows(text: str, plan: ExecutionPlan) -> set[tuple[str, str]]:
    """Parse the arrows of a drawing from its lines."""
    lanes: dict[int, str] = {}
    arrows: set[tuple[str, str]] = set()
    reached: dict[int, set[str]] = {}
    margin = max(len(line) - len(line.lstrip("●│├┤┼╮╭┬╯╰┴─ ")) for line in text.splitlines())
    for line in text.splitlines():
        row, label = line[:margin], line[margin:].split()
        for column in [column for column in lanes if row[column : column + 1] in ("", " ")]:
            del lanes[column]
        if not label:
            reached = {}
            for segment in re.finditer(r"[├┤┼╮╭┬╯╰┴│─]*[─][├┤┼╮╭┬╯╰┴│─]*", row):
                inside = range(segment.start(), segment.end())
                sources = {lanes[column] for column in inside if row[column] in "├┤┼╯╰┴" and column in lanes}
                for column in inside:
                    if row[column] in "├┤┼╮╭┬":
                        reached[column] = sources
                for column in inside:
                    if row[column] in "╯╰┴─":
                        lanes.pop(column, None)
            continue
        [column] = [column for column, character in enumerate(row) if character == "●"]
        arrows |= {(source, label[0]) for source in reached.get(column, {lanes[column]} if column in lanes else set())}
        lanes[column] = label[0]
        reached = {}
    return arrows


@given(graphs)
def test_text_drawing_has_exactly_the_arrows_of_the_plan(names: dict[str, str]) -> None:
    plan = graph(**names)
    text = graph_text(plan)
    assert parse_arrows(text, plan) == {(source, name) for name, sources in names.items() for source in sources.split()}
    assert sorted(line.split()[-2] for line in text.splitlines() if "●" in line) == sorted(names)


@given(graphs)
def test_svg_has_all_steps_and_arrows_without_overlap(names: dict[str, str]) -> None:
    plan = graph(**names)
    root = ElementTree.fromstring(graph_svg(plan))
    assert [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "id"] == list(names)
    arrows = [path for path in root.iter(f"{SVG}path") if path.get("class") == "arrow"]
    assert len(arrows) == sum(len(sources.split()) for sources in names.values())
    boxes = [box for box in root.iter(f"{SVG}rect") if box.get("class") == "box"]
    positions = sorted(
        (float(box.get("y") or 0), float(box.get("x") or 0), float(box.get("width") or 0)) for box in boxes
    )
    for (top, left, width), (other_top, other_left, _) in pairwise(positions):
        assert top != other_top or left + width < other_left
    tops = {number: float(box.get("y") or 0) for number, box in enumerate(boxes)}
    assert all(
        tops[source] < tops[number] for number, sources in enumerate(step_predecessors(plan)) for source in sources
    )


def test_svg_is_self_contained_and_escapes_text() -> None:
    plan = plan_from_dict({"plan": '<p> & "q"', "steps": [{"id": "a<b>&'c", "noop": {}}]}, KINDS).plan
    svg = graph_svg(plan)
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{SVG}title") == '<p> & "q"'
    assert root.findtext(f"{SVG}desc") == 'The 1 step of the plan <p> & "q", each below its predecessors.'
    assert [text.text for text in root.iter(f"{SVG}text")] == ["a<b>&'c", "noop"]
    assert "<script" not in svg
    assert re.findall(r"https?://[^\"' ]*", svg) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("shape", ["chain", "fan", "ladder"])
def test_a_large_plan_can_be_drawn(shape: str) -> None:
    size = 1500
    if shape == "chain":
        names = {f"s{number}": f"s{number - 1}" if number else "" for number in range(size)}
    elif shape == "fan":
        names = {"a": "", **{f"s{number}": "a" for number in range(size)}}
    else:  # Arrows from the first step to every later one would bend in every layer.
        names = {"a": "", **{f"s{number}": f"a s{number - 1}" if number else "a" for number in range(size)}}
    plan = graph(**names)
    assert graph_svg(plan).count('class="box"') == len(plan.steps)
    assert len(graph_text(plan).splitlines()) == len(plan.steps)


def test_layout_aligns_a_chain_vertically() -> None:
    drawing = compute_layout([[], [0], [1], [2]], [100.0, 80.0, 120.0, 60.0], 20.0)
    assert len({round(node.x, 3) for node in drawing.nodes}) == 1
