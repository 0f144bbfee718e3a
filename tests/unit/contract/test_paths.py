"""Entity paths: formatting and parsing are inverse, and other text is not parsed as a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.contract.paths import RESERVED, EntityPath, parse_path, signal_path

names = st.text(st.characters(exclude_characters="|@~[]/", exclude_categories=["Cs"]), min_size=1, max_size=12)
ordinals = st.integers(1, 3) | st.integers(1, 10**12)
paths = st.builds(
    EntityPath,
    step=names,
    visit=ordinals,
    attempt=ordinals,
    indexes=st.lists(st.integers(0, 3) | st.integers(0, 10**9), max_size=4).map(tuple),
) | st.builds(
    EntityPath,
    step=names,
    visit=ordinals,
    attempt=ordinals,
    indexes=st.lists(st.integers(0, 10**9), max_size=4).map(tuple),
    task=names,
    task_visit=ordinals,
)


@given(paths)
def test_a_formatted_path_parses_to_the_same_path(path: EntityPath) -> None:
    assert parse_path(str(path)) == path


@given(paths, paths)
def test_different_entities_have_different_paths(one: EntityPath, two: EntityPath) -> None:
    assert (str(one) == str(two)) == (one == two)


@given(st.text(st.sampled_from("aé1203@~[]/| -\n"), max_size=12) | st.text(max_size=12))
def test_a_parsed_path_formats_to_the_same_text(text: str) -> None:
    path = parse_path(text)
    assert path is None or str(path) == text


@given(names)
def test_a_plain_step_id_is_its_own_path(step: str) -> None:
    assert parse_path(step) == EntityPath(step)
    assert str(EntityPath(step)) == step


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("load", EntityPath("load")),
        ("load@2", EntityPath("load", visit=2)),
        ("load~3", EntityPath("load", attempt=3)),
        ("load[0]", EntityPath("load", indexes=(0,))),
        ("load/fetch", EntityPath("load", task="fetch")),
        ("load/fetch@2", EntityPath("load", task="fetch", task_visit=2)),
        ("load@2~3[4][0]/fetch@2", EntityPath("load", 2, 3, (4, 0), "fetch", 2)),
        ("RUN", EntityPath("RUN")),
        (" load ", EntityPath(" load ")),
    ],
)
def test_examples_of_the_path_grammar(text: str, path: EntityPath) -> None:
    assert str(path) == text
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "", "@2", "~2", "[0]", "/fetch", "load/", "load@", "load~", "load[", "load]", "load[]",  # something is missing
        "load@1", "load~1", "load/fetch@1",  # the first visit or attempt is omitted
        "load@0", "load~0", "load/fetch@0", "load@-1", "load[-1]",  # there is no such visit
        "load@02", "load~007", "load[00]", "load/fetch@010",  # numbers have no leading zeros
        "load~2@3", "load[1]~2", "load[1]@2", "load/fetch~2", "load/fetch[1]",  # out of order
        "load/fetch/again", "load@2@3", "load~2~3", "load|fetch", "load@two",
        "load@٢", "load@²", "load[１]", "load@ 2", "load@2 ", "load@2\n",  # digits are ASCII digits
    ],
)  # fmt: skip
def test_text_outside_the_grammar_is_not_a_path(text: str) -> None:
    assert parse_path(text) is None


def test_path_numbers_with_too_many_digits_are_refused() -> None:
    assert parse_path("a@" + "9" * 18) == EntityPath("a", visit=int("9" * 18))
    assert parse_path("a@" + "9" * 5000) is None


def test_the_characters_of_the_grammar_are_reserved() -> None:
    assert set("|@~[]/") == RESERVED


@given(names)
def test_a_signal_path_has_the_prefix_signal(signal_id: str) -> None:
    assert signal_path(signal_id) == f"signal/{signal_id}"
