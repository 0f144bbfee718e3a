"""Named parameters in SQL: replaced outside literals and comments, unchanged inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.tools.sql.text import SqlTextError, is_outside_literals, split_statements, to_positional


@pytest.mark.parametrize(
    ("query", "names", "expected", "order"),
    [
        ("select :a", ["a"], "select $1", ["a"]),
        ("select :b, :a, :b", ["a", "b"], "select $1, $2, $1", ["b", "a"]),
        ("where x=:a and y>(:b)", ["a", "b"], "where x=$1 and y>($2)", ["a", "b"]),
        ("select ':a', :a", ["a"], "select ':a', $1", ["a"]),
        ("select 'it''s :a', :a", ["a"], "select 'it''s :a', $1", ["a"]),
        (r"select E'\':a', :a", ["a"], r"select E'\':a', $1", ["a"]),
        ('select ":a", :a', ["a"], 'select ":a", $1', ["a"]),
        ("select :a -- and :b\n, 1", ["a"], "select $1 -- and :b\n, 1", ["a"]),
        ("select /* :x /* :y */ :z */ :a", ["a"], "select /* :x /* :y */ :z */ $1", ["a"]),
        ("select :a::date, x::text", ["a"], "select $1::date, x::text", ["a"]),
        ("select $$ :x $$, :a", ["a"], "select $$ :x $$, $1", ["a"]),
        ("select $q$ :x $$ $q$, :a", ["a"], "select $q$ :x $$ $q$, $1", ["a"]),
        ("select list[1:n], {'k':v}, :a", ["a"], "select list[1:n], {'k':v}, $1", ["a"]),
        ("select 1", [], "select 1", []),
    ],
)
def test_named_parameters_become_positional(query: str, names: list[str], expected: str, order: list[str]) -> None:
    assert to_positional(query, names, "$") == (expected, order)


def test_missing_and_unused_parameters_are_refused_by_name() -> None:
    with pytest.raises(SqlTextError, match="uses :day, but `args` has no 'day'"):
        to_positional("select :day", [], "$")
    with pytest.raises(SqlTextError, match="has 'dya', but the query does not use :dya"):
        to_positional("select :day", ["day", "dya"], "$")


@given(st.text(alphabet="ab:'\"-/*$ \n\\E[1", max_size=40))
def test_any_text_is_converted_completely_or_refused(text: str) -> None:
    try:
        query, names = to_positional(text, ("a", "b"), "$")
    except SqlTextError:
        return
    assert set(names) == {"a", "b"}
    assert query.replace("$1", f":{names[0]}").replace("$2", f":{names[1]}") == text or "$" in text


@given(st.text(alphabet="ab: ", max_size=20))
def test_quoted_text_is_not_changed(inside: str) -> None:
    quoted = "'" + inside.replace("'", "''") + "'"
    assert to_positional(f"select {quoted}, :a", ["a"], "?") == (f"select {quoted}, ?1", ["a"])


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("select 1", 1),
        ("select 1;", 1),
        ("select 1;;", 1),
        ("select 1; -- all", 1),
        ("select 1; /* ; */ ", 1),
        ("-- nothing", 0),
        (" ; ; ", 0),
        ("insert into t values ('a;b'); insert into t values (2)", 2),
        ('select $$;$$; select ";"', 2),
    ],
)
def test_statements_are_split_outside_literals_and_comments(query: str, count: int) -> None:
    assert len(split_statements(query)) == count


def test_words_in_quotes_and_comments_are_inside_literals() -> None:
    assert is_outside_literals("select * from NAME where x = 'y'", "NAME")
    for query in ("select 'NAME'", 'select "NAME"', "select 1 -- NAME", "/* NAME */ select 1", "select $$ NAME $$"):
        assert not is_outside_literals(query, "NAME")
