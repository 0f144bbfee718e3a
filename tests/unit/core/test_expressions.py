"""Expressions: types are preserved, missing data is an error, and evaluation is sandboxed and bounded."""

from __future__ import annotations

import subprocess
import sys
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runwright.contract.errors import ErrorCode
from runwright.core.expressions.filters import FILTERS
from runwright.core.expressions.predicates import TESTS
from runwright.core.expressions.template import (
    ExpressionError,
    check,
    check_single,
    contains_expression,
    evaluate,
    evaluate_all,
    has_expression,
    is_true,
    mentioned_fields,
    mentioned_names,
    mentioned_steps,
)

SCOPE: dict[str, Any] = {
    "params": {"x": 3, "day": "2026-01-01", "flag": False, "nothing": None, "names": ["b", "a", "B"], "_id": 7},
    "steps": {
        "extract": {
            "status": "SUCCESS",
            "result": {"rows": [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}], "items": 5, "keys": "mine"},
        },
        "odd-name": {"result": "odd"},
    },
    "run": {"id": "run-1"},
    "item": "x",
}


def refusal(text: str, scope: dict[str, Any] | None = None) -> str:
    with pytest.raises(ExpressionError) as refused:
        evaluate(text, SCOPE if scope is None else scope)
    assert refused.value.code is ErrorCode.EXPRESSION_ERROR
    return refused.value.detail


# Evaluation of text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ params.x }}", 3),
        ("{{ params.flag }}", False),
        ("{{ params.nothing }}", None),
        ("{{ params.names }}", ["b", "a", "B"]),
        ("{{ steps.extract.result.rows[1].id }}", 2),
        ("{{ steps.extract.result.rows.0 }}", {"id": 1, "name": "one"}),
        ("{{ steps['odd-name'].result }}", "odd"),
        ("{{ params['_id'] }}", 7),
        ("{{ params.x + 1 }}", 4),
        ("{{ params.x / 2 }}", 1.5),
        ("{{ 7 // 2 }}", 3),
        ("{{ 2 ** 10 }}", 1024),
        ("{{ -params.x }}", -3),
        ("{{ 'a' * 3 }}", "aaa"),
        ("{{ [1] * 3 + [2] }}", [1, 1, 1, 2]),
        ("{{ 'a' ~ params.x ~ true }}", "a3true"),
        ("{{ '%03d of %s' % (7, 'nine') }}", "007 of nine"),
        ("{{ 1 < 2 <= 2 and not false }}", True),
        ("{{ 'b' in params.names and 'z' not in params.names }}", True),
        ("{{ 'yes' if params.x > 2 else 'no' }}", "yes"),
        ("{{ {'a': [1, (2, 3)]} }}", {"a": [1, [2, 3]]}),
        ("{{ params.day[:4] }}", "2026"),
        ("{{ params.names[::-1] }}", ["B", "a", "b"]),
        ("{{ range(1, 6, 2) }}", [1, 3, 5]),
        ("{{ params.day.split('-')[0] | int }}", 2026),
        ("{{ params.day.startswith('2026') }}", True),
        ("{{ '{{' }}", "{{"),
        ("{{ '}}' ~ \"}}\" }}", "}}}}"),
        ("{{ 'a\\n\\u00e9' }}", "a\né"),
    ],
)
def test_a_single_expression_preserves_the_type_of_its_value(text: str, value: Any) -> None:
    result = evaluate(text, SCOPE)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("day={{ params.day }}", "day=2026-01-01"),
        ("{{ params.x }}{{ params.x }}", "33"),
        (" {{ params.x }}", " 3"),
        ("{{ params.x }}\n", "3\n"),
        ("n={{ params.nothing }} f={{ params.flag }} t={{ true }}", "n=null f=false t=true"),
        ("{{ params.names }}!", '["b","a","B"]!'),
        ("{{ {'a': none} }}!", '{"a":null}!'),
        ("{{ 1.5 }} {{ 10 ** 20 }}", "1.5 100000000000000000000"),
        ("tabs\tand\r\nline ends stay: {{ params.x }}", "tabs\tand\r\nline ends stay: 3"),
        ("no expression }} here", "no expression }} here"),
        ("", ""),
    ],
)
def test_expressions_within_text_give_text(text: str, value: str) -> None:
    assert evaluate(text, SCOPE) == value


def test_evaluation_recurses_into_values_but_not_keys() -> None:
    value = {"{{ params.x }}": ["{{ params.x }}", {"deep": "n={{ params.x }}"}], "n": 1.5, "none": None}
    assert evaluate_all(value, SCOPE) == {"{{ params.x }}": [3, {"deep": "n=3"}], "n": 1.5, "none": None}


def test_the_result_of_an_expression_is_not_evaluated_again() -> None:
    assert evaluate("{{ params.a }}", {"params": {"a": "{{ params.b }}"}}) == "{{ params.b }}"


# Fields take precedence over methods


def test_a_field_hides_a_method_of_the_same_name() -> None:
    assert evaluate("{{ steps.extract.result.items }}", SCOPE) == 5
    assert evaluate("{{ steps.extract.result.keys }}", SCOPE) == "mine"


def test_methods_of_mappings_can_be_called_unless_hidden() -> None:
    assert evaluate("{{ run.items() }}", SCOPE) == [["id", "run-1"]]
    assert evaluate("{{ run.get('other', 'none') }}", SCOPE) == "none"
    assert "is a field and cannot be called" in refusal("{{ steps.extract.result.items() }}")


def test_any_mapping_type_can_be_data() -> None:
    scope = {"params": MappingProxyType({"a": MappingProxyType({"b": 1})})}
    assert evaluate("{{ params.a.b }}", scope) == 1
    assert evaluate("{{ params.a }}!", scope) == '{"b":1}!'


# Missing data


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{{ params.dya }}", "params has no 'dya'; did you mean 'day'?"),
        ("{{ parms.day }}", "unknown name 'parms'; did you mean 'params'?"),
        ("{{ params.missing.deeper }}", "params has no 'missing'"),
        ("{{ params.x.deeper }}", "params.x is a number and has no 'deeper'"),
        ("{{ params.names[3] }}", "params.names has no item 3; its length is 3"),
        ("{{ steps.extract.result.rows[0].nam }}", "did you mean 'name'?"),
        ("n={{ params.missing }}", "params has no 'missing'"),
        ("{{ params.missing | upper }}", "params has no 'missing'"),
        ("{{ params.missing.deeper | default(1) }}", "params has no 'missing'"),
        ("{{ params.missing.deeper is defined }}", "params has no 'missing'"),
        ("{{ params.names | map(attribute='id') }}", "has no 'id'"),
        ("{{ [] | first }}", "is empty"),
        ("{{ 1 if params.flag }}", "`if` requires `else`"),
    ],
)
def test_missing_data_is_an_error_with_its_name(text: str, sentence: str) -> None:
    assert sentence in refusal(text)


def test_default_and_defined_accept_missing_data() -> None:
    assert evaluate("{{ params.missing | default(4) }}", SCOPE) == 4
    assert evaluate("{{ params.missing is defined }}", SCOPE) is False
    assert evaluate("{{ nowhere is undefined }}", SCOPE) is True
    assert evaluate("{{ params.flag | default(5, true) }}", SCOPE) == 5
    assert evaluate("{{ params.names[9] | default('none') }}", SCOPE) == "none"


def test_errors_show_the_expression_and_never_a_value() -> None:
    detail = refusal("{{ params.key + 1 }}", {"params": {"key": "hunter2"}})
    assert detail.startswith('In "{{ params.key + 1 }}": text and a number cannot be added')
    assert "hunter2" not in detail
    for text in ("{{ params.key | int }}", "{{ params.key % 2 }}", "{{ params[params.key].x }}", "{{ params.key.x }}"):
        assert "hunter2" not in refusal(text, {"params": {"key": "hunter2"}})


def test_long_expressions_are_shortened_in_errors() -> None:
    assert len(refusal("{{ params.x + '" + "a" * 5000 + "' }}")) < 250


# Filters and tests


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ params.names | length }}", 3),
        ("{{ params.names | sort }}", ["a", "b", "B"]),
        ("{{ params.names | sort(reverse=true, case_sensitive=true) }}", ["b", "a", "B"]),
        ("{{ params.names | unique }}", ["b", "a"]),
        ("{{ [{'a': 1}, {'a': 1}] | unique }}", [{"a": 1}]),
        ("{{ params.names | join(', ') }}", "b, a, B"),
        ("{{ steps.extract.result.rows | map(attribute='id') | sum }}", 3),
        ("{{ steps.extract.result.rows | sum(attribute='id') }}", 3),
        ("{{ steps.extract.result.rows | map(attribute='x', default=0) }}", [0, 0]),
        ("{{ params.names | map('upper') }}", ["B", "A", "B"]),
        ("{{ [1, 2, 3] | select('odd') }}", [1, 3]),
        ("{{ [0, 1, ''] | reject }}", [0, ""]),
        ("{{ steps.extract.result.rows | selectattr('id', 'gt', 1) | map(attribute='name') | first }}", "two"),
        ("{{ [{'a': 1}, {}] | rejectattr('a', 'defined') }}", [{}]),
        ("{{ [3, 1, 2] | min }}", 1),
        ("{{ [3, 1, 2] | max }}", 3),
        ("{{ (-3) | abs }}", 3),
        ("{{ 2.567 | round(2) }}", 2.57),
        ("{{ 2.1 | round(0, 'ceil') }}", 3.0),
        ("{{ ' 12 ' | int }}", 12),
        ("{{ 'x' | int(0) }}", 0),
        ("{{ '1.5' | float }}", 1.5),
        ("{{ 5 | string }}", "5"),
        ("{{ 'ab' | list }}", ["a", "b"]),
        ("{{ [1, 2] | reverse }}", [2, 1]),
        ("{{ 'a,b' | split(',') }}", ["a", "b"]),
        ("{{ ' a ' | trim }}", "a"),
        ("{{ 'aXa' | replace('X', '-') }}", "a-a"),
        ("{{ 'hello there' | title }}", "Hello There"),
        ("{{ 'a' | center(5) }}", "  a  "),
        ("{{ 'abcdef' | truncate(5) }}", "ab..."),
        ("{{ 'a\\nb' | indent(2) }}", "a\n  b"),
        ("{{ '%s-%s' | format('a', 1) }}", "a-1"),
        ("{{ '%(a)s' | format(a=1) }}", "1"),
        ("{{ {'b': 1, 'a': 2} | dictsort }}", [["a", 2], ["b", 1]]),
        ("{{ {'b': 1} | items }}", [["b", 1]]),
        ("{{ [1, 2, 3] | batch(2) }}", [[1, 2], [3]]),
        ("{{ [1, 2, 3] | batch(2, 0) }}", [[1, 2], [3, 0]]),
        ("{{ {'a': [1, none]} | tojson }}", '{"a":[1,null]}'),
        ("{{ '[1, {\"a\": 2}]' | fromjson }}", [1, {"a": 2}]),
        ("{{ 'a b&c/d' | urlencode }}", "a%20b%26c%2Fd"),
        ("{{ {'a': 1, 'b': 'x y'} | urlencode }}", "a=1&b=x+y"),
        ('{{ "it\'s" | quote }}', "'it'\"'\"'s'"),
        ("{{ 'my \"table\"' | ident }}", '"my ""table"""'),
        ("{{ '/data/in/a.csv' | basename }}", "a.csv"),
        ("{{ '/data/in/a.csv' | dirname }}", "/data/in"),
        ("{{ 6 is divisibleby 3 and 6 is even and 6 is not odd }}", True),
        ("{{ 1 is number and 1 is integer and true is not number }}", True),
        ("{{ 'a' is in ['a'] and 2 is gt 1 }}", True),
        ("{{ params is mapping and params.names is sequence and none is none }}", True),
    ],
)
def test_examples_of_filters_and_tests(text: str, value: Any) -> None:
    assert evaluate(text, SCOPE) == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{{ 'a' | uper }}", "unknown filter 'uper'; did you mean 'upper'?"),
        ("{{ 1 is evn }}", "unknown test 'evn'; did you mean 'even'?"),
        ("{{ [1] | map('nope') }}", "unknown filter 'nope'"),
        ("{{ 'a' | center }}", "does not accept"),
        ("{{ 5 | length }}", "filter 'length' does not accept a number"),
        ("{{ ['a'] | ident }}", "requires non-empty text"),
        ("{{ 'a\\x00b' | ident }}", "requires non-empty text"),
        ("{{ 'x' | int }}", "not a whole number"),
        ("{{ 'nan' | float }}", "not a finite number"),
        ("{{ '{' | fromjson }}", "not JSON"),
        ("{{ [[1], [2]] | sort }}", "a list cannot be sorted"),
        ("{{ 1 < 'a' }}", "cannot be ordered"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'abc'.format(1) }}", "text has no method 'format'"),
        ("{{ params.names.append(1) }}", "a list has no method 'append'"),
    ],
)
def test_wrong_use_of_filters_and_operators_is_an_error(text: str, sentence: str) -> None:
    assert sentence in refusal(text)


# Syntax


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{{ a b }}", "unexpected 'b' after the expression"),
        ("{{ }}", "no expression between the braces"),
        ("{{ a", "is not closed"),
        ("{{ 'a }}", "unexpected char"),
        ("{{ a + }}", "unexpected"),
        ("{{ a.b( }}", "not closed"),
        ("{{- a -}}", "put a space"),
        ("{% if a %}b{% endif %}", "no {% %} blocks"),
        ("{# a comment #}", "no {# #} comments"),
        ("{{ 'C:\\data' }}", "unknown escape \\d"),
        ("{{ '\\ud800' }}", "surrogate"),
        ("{{ " + "9" * 5000 + " }}", "invalid number or quoted text"),
        ("{{ 1e999 }}", "not a finite number"),
        ("{{ a(*b) }}", "unpacking arguments"),
        ("{{ lipsum() }}", "only range() and methods"),
        ("{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "nested too deeply"),
        ("{{ " + "-" * 300 + "1 }}", "nested too deeply"),
        ("{{ 1" + " + 1" * 300 + " }}", "nested too deeply"),
        ("{{ '" + "a" * 9000 + "' }}", "longer than 8,192 characters"),
        ("{{ 1 }}" * 1500, "at most 1000 expressions"),
    ],
)
def test_syntax_errors_are_found_without_evaluation(text: str, sentence: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        check(text)
    assert sentence in refused.value.detail


@pytest.mark.parametrize(
    "text", ["", "plain", "a { b } c", "echo ${#name} {a,b}", "100%}", "{{ a }}{{ b.c | d(1) }}"[:7]]
)
def test_text_with_other_braces_is_not_changed(text: str) -> None:
    check(text)
    assert evaluate(text, {"a": text}) == text


# Sandbox


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__", "params.__class__", "params['__class__']", "''['__class__']", "params|attr('__class__')",
        "''.__class__.__mro__[1].__subclasses__()", "params.get.__globals__", "params.names.append", "range.__init__",
        "self", "self._TemplateReference__context", "cycler.__init__.__globals__", "joiner", "namespace()",
        "lipsum.__globals__['os']", "config", "request", "caller()", "super()", "loop", "dict(a=1)", "[1]|random",
        "'a'.join", "params.keys", "'{0.__class__}'.format(1)", "'%s'|format(params.__class__)", "_x", "run._private",
        "params.names|map(attribute='__class__')", "'abc'|map('attr', '__class__')|list", "run.items().__class__",
        "params.names|sort(attribute='__class__')", "params|xmlattr", "'x'|pprint", "'a'|e", "'a'|safe", "[]|shuffle",
    ],
)  # fmt: skip
def test_expressions_cannot_reach_python_internals(expression: str) -> None:
    refusal("{{ " + expression + " }}")


def test_unsafe_filters_and_tests_are_not_available() -> None:
    assert not {"random", "attr", "shuffle", "pprint", "safe", "xmlattr", "groupby"} & FILTERS.keys()
    assert not {"callable", "filter", "test", "escaped"} & TESTS.keys()


def test_an_expression_cannot_change_its_scope() -> None:
    before = msgspec.json.encode(SCOPE)
    for text in ("{{ params.names | sort | list + [1] }}", "{{ params.names | reverse }}", "{{ params.names * 2 }}"):
        evaluate(text, SCOPE)
    assert msgspec.json.encode(SCOPE) == before


BOMBS = [
    "'a' * 10**9", "[1] * 10**9", "10**9 * 'a'", "9**(9**9)", "10**10000", "2**100000", "10**4000 * 10**4000",
    "'%1000000000d' % 1", "'%.1000000000f' % 1", "'%*d' % (1000000000, 1)", "'%1000000000d'|format(1)",
    "'%1000000000d' is odd", "'%1000000000d' is divisibleby 3", "'a'|center(10**9)", "'a'.center(10**9)",
    "'a'.ljust(10**9)", "'a'.zfill(10**9)", "'a'|indent(10**9)", "range(10**9)", "range(10**30)", "range(0, -10**9, -1)",
    "('a' * 1000)|replace('a', 'b' * 100000)", "('a' * 1000).replace('', 'b' * 100000)",
    "('a' * 100000).join(['b'] * 100000)", "(['a' * 1000] * 1000)|join('a' * 1000)",
    "[[[[1] * 1000] * 1000] * 1000] * 1000", "([[1] * 1000] * 1000)|tojson", "(['a' * 100000] * 1000)|tojson",
    "([0] * 200000)|map('default', [1] * 100000, true)",
    "([0] * 200000)|map('default', [1] * 100000, true)|select('eq', [1] * 100000)",
    "([0] * 200000)|map('default', 'a' * 1000000, true)|map('upper')",
    "([0] * 200000)|map('default', 'a' * 1000000, true)|map('split', 'b')",
    "([0] * 200000)|map('default', 'a' * 1000000, true)|sort",
    "([0] * 200000)|map('default', 'a' * 1000000, true)|unique",
    "([0] * 200000)|map('default', 'f' * 1000000, true)|map('int', 0, 16)",
    "([0] * 200000)|map('default', 'a' * 1000000, true)|select('in', 'b' * 1000000)",
    "([0] * 200000)|map('default', range(100000), true)|map('sum')",
    "([0] * 200000)|map('default', range(100000), true)|map('map', 'string')|map('join')",
    "range(100000)|map('string')|map('center', 100000)", "range(100000)|batch(10**9, 'a')",
    "range(100000)|select('in', range(100000))",
    "(['a'] * 10000)|sum(start='')", "([[1]] * 10000)|sum(start=[])",
    "('[' * 100000)|fromjson", "('a' * 1000000)|urlencode|urlencode|urlencode",
    "'a' ~ ('b' * 1000000) ~ ('c' * 1000000)", "{'a': 'b' * 1000000}|tojson|tojson|tojson",
    "([1] * 100000) == ([1] * 100000) and ([1] * 200000)|length > range(100000)|length and [1]*10**6 == [1]*10**6",
    "0.1 ** -1000", "1e308 * 10", "1e308 + 1e308", "(-1) ** 0.5", "10 ** -(10**1000)", "5|round(10**9)",
]  # fmt: skip


@pytest.mark.parametrize("expression", BOMBS)
def test_expensive_expressions_are_refused(expression: str) -> None:
    refusal("{{ " + expression + " }}")
    refusal("x{{ " + expression + " }}")


def test_a_large_value_can_be_passed_through_unchanged() -> None:
    rows = [{"id": number} for number in range(200_000)]
    assert evaluate("{{ steps.a.result.rows }}", {"steps": {"a": {"result": {"rows": rows}}}}) is rows


# Conditions


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (True, True),
        (False, False),
        ("params.x > 2", True),
        ("{{ params.x > 3 }}", False),
        (" {{ params.x > 2 }}\n", True),
        ("params.nothing", False),
        ("params.names", True),
        ("'false'", False),
        ("'True'", True),
        ("''", False),
        ("steps.extract.status == 'SUCCESS'", True),
    ],
)
def test_examples_of_conditions(condition: str | bool, holds: bool) -> None:
    assert is_true(condition, SCOPE) is holds


@pytest.mark.parametrize("condition", ["{{ params.x }} > 2", "{{ true }} and {{ true }}", "", "params.missing", "a b"])
def test_a_condition_that_is_not_one_expression_is_an_error(condition: str) -> None:
    with pytest.raises(ExpressionError):
        is_true(condition, SCOPE)


def test_check_single_refuses_text_around_the_expression() -> None:
    check_single("{{ a }}")
    for text in ("a", "{{ a }} ", "{{ a }}{{ b }}"):
        with pytest.raises(ExpressionError):
            check_single(text)


# Names in expressions


def test_mentioned_steps_are_found_without_evaluation() -> None:
    values = [
        "{{ steps.a.result + steps['b-c'].result }}",
        {"x": ["{{ params.y | default(steps.d.result) }}"]},
        5,
        None,
    ]
    assert mentioned_steps(values) == {"a", "b-c", "d"}
    assert mentioned_steps(["steps.a without braces"]) == frozenset()
    assert mentioned_steps(["{{ steps.x is defined }}"]) == {"x"}


@pytest.mark.parametrize("text", ["{{ steps[params.x] }}", "{{ steps }}", "{{ steps | length }}", "{{ steps.get('a') }}", "{{ steps | map(attribute='a') }}"])  # fmt: skip
def test_mentioned_steps_are_none_for_dynamic_references(text: str) -> None:
    assert mentioned_steps(["{{ steps.a.result }}", text]) is None


def test_mentioned_names_and_fields_are_found() -> None:
    assert mentioned_names({"a": "{{ params.x }} {{ range(item) }}", "b": ["{{ index is defined }}"]}) == {
        "params",
        "item",
        "index",
    }
    assert mentioned_fields("params", ["{{ params.x }}", "{{ params['y'] }}"]) == {"x", "y"}


def test_expressions_are_detected_in_text_and_in_data() -> None:
    assert has_expression("a {{ b }}")
    assert not has_expression("a") and not has_expression(5) and not has_expression(["{{ b }}"])
    assert contains_expression({"a": [1, {"b": "{{ c }}"}]})
    assert not contains_expression({"{{ a }}": [1, {"b": "c"}], "d": None})


def test_jinja_is_not_loaded_before_the_first_expression() -> None:
    code = "import sys, runwright.core.expressions.template as e; e.evaluate('a', {}); e.check('b'); sys.exit('jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Arbitrary expressions

numbers = st.sampled_from(["0", "1", "2.5", "-3", "10**9", "1000000", "9999999999", "1e300", "true", "none"])
texts = st.sampled_from(["''", "'a'", "'%s'", "'%9999d'", "'x' * 100000", "'[1,2]'", "'upper'", "'eq'", "'a.b'"])
names = st.sampled_from(
    ["params", "params.x", "params.names", "steps.extract.result.rows", "item", "nowhere", "params.day"]
)
atoms = numbers | texts | names | st.sampled_from(["[]", "{}", "range(100000)", "[0] * 100000", "[params.names]"])
operators = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "not in", "is divisibleby"]
)
filters = st.sampled_from(sorted(FILTERS))
tests = st.sampled_from(sorted(name for name in TESTS if name.isidentifier()))
methods = st.sampled_from(
    ["upper", "split", "join", "get", "items", "index", "count", "replace", "center", "nope", "__class__"]
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arguments = st.lists(inner, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, filters, arguments).map(lambda parts: f"({parts[0]} | {parts[1]}({parts[2]}))"),
        st.tuples(inner, tests, arguments).map(lambda parts: f"({parts[0]} is {parts[1]}({parts[2]}))"),
        st.tuples(inner, methods, arguments).map(lambda parts: f"({parts[0]}).{parts[1]}({parts[2]})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        st.tuples(inner, inner).map(lambda parts: f"({parts[0]})[{parts[1]}]"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]})[{parts[1]}:{parts[2]}]"),
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.tuples(inner, inner).map(lambda parts: f"{{{parts[0]}: {parts[1]}}}"),
    )


expressions = st.recursive(atoms, compound, max_leaves=12)


def outcome(text: str) -> Any:
    """Evaluate a text; return None if it is refused. The result must be data, and an error an ExpressionError."""
    try:
        value = evaluate(text, SCOPE)
        check(text)
    except ExpressionError as error:
        assert error.detail.endswith((".", "?"))
        return None
    msgspec.json.encode(value)
    return value


@given(expressions)
@example("([0] | map('default', params))")
def test_any_expression_gives_data_or_an_error(expression: str) -> None:
    outcome("{{ " + expression + " }}")
    mixed = outcome("a{{ " + expression + " }}")
    assert mixed is None or isinstance(mixed, str)


@given(st.text(max_size=60) | st.text("{}%# '\"\\()[]|.ax0-", max_size=60))
def test_any_text_gives_data_or_an_error(text: str) -> None:
    outcome(text)
    outcome("{{ " + text + " }}")
    try:
        is_true(text, SCOPE)
        mentioned_steps([text])
        mentioned_names(text)
    except ExpressionError:
        pass


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text("ab c", max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner), max_leaves=10))  # fmt: skip
def test_data_without_expressions_is_not_changed(value: Any) -> None:
    assert evaluate_all(value, {}) == value


@pytest.mark.parametrize("text", ["{{ '%c' | format(55296) }}", "{{ '%c' % 57343 }}", "x{{ ['%c' % 55296] }}"])
def test_half_a_character_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionError, match="unpaired surrogate"):
        evaluate(text, {})
