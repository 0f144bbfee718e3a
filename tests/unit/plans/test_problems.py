"""All problems of a plan are reported at once, each with position, problem and remedy."""

from __future__ import annotations

import pytest

from runwright.contract.errors import ErrorCode
from runwright.plans.problems import PlanInvalid, Problem, path_text
from support.plan_kinds import load_text, problems_of, with_step

FIVE_MISTAKES = """\
plan: five
onFailure: explode
steps:
  - id: one
    shel: echo hello
  - id: two
    shell: echo {{ steps.thre.result | quote }}
    retry:
      maxAttempts: none
  - id: three
    dependsOn: [two, four]
    noop: {}
"""


def test_five_mistakes_get_five_messages_with_the_right_lines() -> None:
    assert problems_of(FIVE_MISTAKES, "five.yaml") == [
        "five.yaml:2:12: INVALID_PLAN_SCHEMA `onFailure` must be one of fail, continue, wait.",
        "five.yaml:5:5: INVALID_STEP_SCHEMA Unknown field or kind 'shel' in a step. Did you mean 'shell'?",
        "five.yaml:7:12: EXPRESSION_ERROR Unknown step 'thre'. Did you mean 'three'?",
        "five.yaml:9:20: INVALID_STEP_SCHEMA `maxAttempts` must be an integer from 1 to 1,000.",
        "five.yaml:11:22: INVALID_PLAN_SCHEMA Unknown step 'four' in `dependsOn`.",
    ]


def test_the_error_has_all_problems_and_the_code_of_the_first() -> None:
    with pytest.raises(PlanInvalid) as invalid:
        load_text(FIVE_MISTAKES)
    assert invalid.value.code is ErrorCode.INVALID_PLAN_SCHEMA
    assert len(invalid.value.problems) == 5
    assert "(4 more problems in this plan.)" in invalid.value.detail
    first = invalid.value.problems[0]
    assert (first.line, first.column, first.path) == (2, 12, "onFailure")


PLAN_MISTAKES = [
    ("", "1:1", "The document is empty."),
    ("null", "1:1", "The document is empty."),
    ("[]", "1:1", "A plan must be a mapping"),
    ("hello", "1:1", "A plan must be a mapping"),
    ("steps: [{id: a, noop: }]", "1:1", "The plan has no name"),
    ("plan: ''\nsteps: [{id: a, noop: }]", "1:7", "`plan` must not be empty"),
    ("plan: a|b\nsteps: [{id: a, noop: }]", "1:7", "contain |"),
    ('plan: "a\\tb"\nsteps: [{id: a, noop: }]', "1:7", "control character"),
    (f"plan: {'a' * 513}\nsteps: [{{id: a, noop: }}]", "1:7", "at most 512 characters"),
    ("plan: 7\nsteps: [{id: a, noop: }]", "1:7", "`plan` must be a string; put it in quotes"),
    ("plan: p\nversion: 1.10\nsteps: [{id: a, noop: }]", "2:10", "`version` must be a string; put it in quotes"),
    ("plan: p\nversion: 1|2\nsteps: [{id: a, noop: }]", "2:10", "contain |"),
    ("plan: p\nmetadata: {planId: q}\nsteps: [{id: a, noop: }]", "1:1", "given twice"),
    ("plan: p\nmetadata: {planid: q}\nsteps: [{id: a, noop: }]", "2:12", "Did you mean 'planId'?"),
    ("plan: p\nmetadata: 5\nsteps: [{id: a, noop: }]", "2:11", "`metadata` must be a mapping"),
    ("apiVersion: v2\nplan: p\nsteps: [{id: a, noop: }]", "1:13", "`apiVersion` must be runwright/v1"),
    ("kind: Job\nplan: p\nsteps: [{id: a, noop: }]", "1:7", "`kind` must be Plan"),
    ("plan: p\nparam: {}\nsteps: [{id: a, noop: }]", "2:1", "Did you mean 'params'?"),
    ("plan: p\nparams: [a]\nsteps: [{id: a, noop: }]", "2:9", "`params` must be a mapping"),
    ("plan: p\nparams: {'': 1}\nsteps: [{id: a, noop: }]", "2:9", "The name of a parameter must not be empty"),
    ("plan: p\nlabels: {a: 1}\nsteps: [{id: a, noop: }]", "2:9", "map names to strings"),
    ("plan: p\norder: backwards\nsteps: [{id: a, noop: }]", "2:8", "`order` must be one of sequential, graph"),
    ("plan: p\ntimeout: 0\nsteps: [{id: a, noop: }]", "2:10", "longer than 0"),
    ("plan: p\ntimeout: soon\nsteps: [{id: a, noop: }]", "2:10", "such as 500ms, 30s"),
    ("plan: p", "1:1", "The plan has no steps"),
    ("plan: p\nsteps: []", "2:8", "The plan has no steps"),
    ("plan: p\nsteps: {a: 1}", "2:8", "`steps` must be a list"),
    ("plan: p\nsteps: [{noop: }]", "2:9", "The step has no id"),
    ("plan: p\nsteps: [{id: '', noop: }]", "2:9", "The step has no id"),
]


@pytest.mark.parametrize(("text", "place", "sentence"), PLAN_MISTAKES)
def test_a_mistake_in_the_plan_header_is_reported(text: str, place: str, sentence: str) -> None:
    [problem] = problems_of(text)
    assert problem.startswith(f"test.yaml:{place}: INVALID_PLAN_SCHEMA ")
    assert sentence in problem


STEP_MISTAKES = [
    ("noop: {}\nid: 7", "6:9", "`id` must be a string; put it in quotes"),
    ("id: a/b\nnoop:", "5:9", "it contains /; reserved characters are"),
    ("id: signal\nnoop:", "5:9", "Invalid id 'signal': reserved"),
    ("id: ' a'\nnoop:", "5:9", "or spaces at its ends"),
    (f"id: {'a' * 257}\nnoop:", "5:9", "at most 256 characters"),
    ("id: a\nstepId: b\nnoop:", "6:5", "are the same field"),
    ("id: a", "5:5", "The step has no kind. Use one of 'call', 'noop', 'shell', 'timeout'."),
    ("id: a\nshell: x\nnoop:", "7:5", "A step must have one kind; this one has 'shell', 'noop'."),
    ("id: a\nkind: noop\nshell: x", "7:5", "A step must have one kind"),
    ("id: a\nkind: nop", "6:11", "Unknown kind 'nop'. Did you mean 'noop'?"),
    ("id: a\nshell: x\nwith: {}", "7:5", "Write the inputs under `shell`"),
    ("id: a\nnoop:\ndependson: [first]", "7:5", "Did you mean 'dependsOn'?"),
    ("id: a\nnoop:\nyes: 1", "7:5", "Unknown field or kind 'yes' in a step"),
    ("id: a\nnoop: 5", "6:11", "The inputs of `noop` must be a mapping"),
    ("id: a\nnoop:\ndependsOn: {a: b}", "7:16", "`dependsOn` must be a list of strings"),
    ("id: a\nnoop:\nwhen: [a]", "7:11", "`when` must be an expression, true or false"),
    ("id: a\nnoop:\ncancellable: 1", "7:18", "`cancellable` must be true or false"),
    ("id: a\nnoop:\nclass: hevy", "7:12", "one of light, heavy, isolation. Did you mean 'heavy'?"),
    ("id: a\nnoop:\ntimeout: 0s", "7:14", "longer than 0"),
    ("id: a\nnoop:\ntimeout: -1", "7:14", "between 0 and a hundred years"),
    ("id: a\nnoop:\nneedsApproval: maybe", "7:20", "true or false"),
    ("id: a\nnoop:\nretry: 3", "7:12", "`retry` must be a mapping"),
    ("id: a\nnoop:\nretry: {maxAttempts: 1001}", "7:26", "from 1 to 1,000"),
    ("id: a\nnoop:\nretry: {maxAttempts: true}", "7:26", "from 1 to 1,000"),
    ("id: a\nnoop:\nretry: {attempts: 3}", "7:13", "Did you mean 'maxAttempts'?"),
    ("id: a\nnoop:\nretry: {backoff: linear}", "7:22", "one of fixed, exponential"),
    ("id: a\nnoop:\nretry: {initial: 5m}", "7:22", "must not be longer than `max`"),
    ("id: a\nnoop:\nforeach: 5", "7:14", "`foreach` must be a mapping"),
    ("id: a\nnoop:\nforeach: rows", "7:14", "`foreach` must be a list, or one"),
    ("id: a\nnoop:\nforeach: {as: x}", "7:14", "`foreach` requires `in`"),
    ("id: a\nnoop:\nforeach: {in: [1], as: steps}", "7:28", "Invalid item name"),
    ("id: a\nnoop:\nforeach: {in: [1], as: 'a b'}", "7:28", "Invalid item name"),
    ("id: a\nnoop:\nforeach: {in: [1], maxParallel: 0}", "7:37", "from 1 to 10,000"),
    ("id: a\nshell: {comand: x, command: y}", "6:13", "Unknown input 'comand' of `shell`. Did you mean 'command'?"),
    ("id: a\nshell: {}", "6:12", "`shell` requires `command`"),
    ("id: a\nshell: 5", "6:12", "`command` must be a string or a list, not an integer; put it in quotes."),
    ("id: a\nshell: {command: x, limit: many}", "6:32", "`limit` must be an integer, not a string."),
    ("id: a\nshell: {command: x, env: {A: 1}}", "6:30", "`env` must be a string, not an integer; put it in quotes."),
    ("id: a\nshell: {command: x, env: {B: '{{ run.id }}', A: 1}}", "6:53", "`env` must be a string"),
    ("id: a\ncall: {login: {userName: '{{ run.id }}', tris: 1}}", "6:46", "Did you mean 'tries'?"),
    ("id: a\ncall: {maxSize: ['{{ run.id }}']}", "6:21", "`maxSize` must not be a list"),
    ("id: a\nshell: forbidden", "6:12", "a may not say 'forbidden'."),
]


@pytest.mark.parametrize(("step", "place", "sentence"), STEP_MISTAKES)
def test_a_mistake_in_a_step_is_reported(step: str, place: str, sentence: str) -> None:
    [problem] = problems_of(with_step(step))
    assert problem.startswith(f"test.yaml:{place}: INVALID_STEP_SCHEMA ")
    assert sentence in problem


EXPRESSION_MISTAKES = [
    ("id: a\nshell: 'echo {{ a b }}'", "6:12", "unexpected 'b' after the expression"),
    ("id: a\nshell: 'echo {{ 1 | uper }}'", "6:12", "unknown filter 'uper'"),
    ("id: a\nshell: 'echo {% if x %} {% endif %}'", "6:12", "no {% %} blocks"),
    ("id: a\nshell: 'echo {{ parms.x | quote }}'", "6:12", "Unknown name 'parms'. Did you mean 'params'?"),
    ("id: a\nshell: 'echo {{ item | quote }}'", "6:12", "Unknown name 'item'"),
    ("id: a\nshell: 'echo {{ index | quote }}'", "6:12", "Unknown name 'index'"),
    ("id: a\nshell: 'echo {{ params.x | quote }}'", "6:12", "Unknown parameter 'x'"),
    (
        "id: a\nshell: {command: [x, '{{ steps.frist.result }}']}",
        "6:26",
        "Unknown step 'frist'. Did you mean 'first'?",
    ),
    ("id: a\nshell: 'echo {{ steps.a.result | quote }}'", "6:12", "'a' may not have ended before 'a'"),
    ("id: a\nnoop:\nwhen: '{{ steps.nobody.result }}'", "7:11", "Unknown step 'nobody'"),
    ("id: a\nnoop:\nwhen: steps.nobody.result", "7:11", "Unknown step 'nobody'"),
    ("id: a\nnoop:\nwhen: '{{ run.id }} == 1'", "7:11", "this must be one expression"),
    ("id: a\nnoop:\nwhen: ''", "7:11", "no expression between the braces"),
    ("id: a\nnoop:\nforeach: '{{ rows }}'", "7:14", "Unknown name 'rows'"),
    ("id: a\nnoop:\nforeach: {in: '{{ run.id }} {{ run.id }}'}", "7:19", "this must be one expression"),
    ("id: a\nnoop:\nforeach: {in: ['{{ item }}']}", "7:20", "Unknown name 'item'"),
    ("id: a\nforeach: {in: [1], as: row}\nshell: '{{ item | quote }}'", "7:12", "Unknown name 'item'"),
    ("id: a\nforeach: [1]\nwhen: item > 3\nnoop:", "7:11", "Unknown name 'item'"),
]


@pytest.mark.parametrize(("step", "place", "sentence"), EXPRESSION_MISTAKES)
def test_a_mistake_in_an_expression_is_reported(step: str, place: str, sentence: str) -> None:
    [problem] = problems_of(with_step(step))
    assert problem.startswith(f"test.yaml:{place}: EXPRESSION_ERROR ")
    assert sentence in problem


def test_names_available_in_expressions_are_accepted() -> None:
    step = """
id: a
when: steps.first.result is defined
foreach: {in: "{{ range(3) }}", as: row}
shell: "{{ row | quote }} {{ index | quote }} {{ run.id | quote }} {{ step.attempt | quote }} {{ steps['first'].result | quote }} {{ steps[row] | quote }}"
"""
    assert problems_of(with_step(step)) == []


def test_problems_in_json_have_the_right_lines() -> None:
    text = '{\n  "plan": "p",\n\t"steps": [\n    {"id": "a", "noop": {}},\n    {"id": "b", "nop": {}}\n  ]\n}'
    assert problems_of(text, "p.json") == [
        "p.json:5:17: INVALID_STEP_SCHEMA Unknown field or kind 'nop' in a step. Did you mean 'noop'?"
    ]


def test_lines_are_right_after_wide_characters_and_block_texts() -> None:
    text = "# ünï😀\n\nplan: p\nsteps:\n  - id: 'ä😀'\n    shell: |\n      a\n\n      b\n    oops: 1\n"
    assert [problem.split(" ")[0] for problem in problems_of(text)] == ["test.yaml:10:5:"]


def test_a_problem_in_an_alias_is_reported_at_the_alias() -> None:
    text = "plan: p\nsteps:\n  - {id: a, noop: {}, retry: &r {maxAttempts: 0}}\n  - {id: b, noop: {}, retry: *r}\n"
    assert [problem.split(" ")[0] for problem in problems_of(text)] == ["test.yaml:3:47:", "test.yaml:4:30:"]


def test_a_duplicate_id_is_reported_at_the_second_step() -> None:
    [problem] = problems_of("plan: p\nsteps:\n  - {id: a, noop: }\n  - {stepId: a, noop: }\n")
    assert problem == "test.yaml:4:14: INVALID_PLAN_SCHEMA Duplicate id 'a': step 1 of the list has the same id."


def test_problems_are_formatted_with_position_and_code() -> None:
    assert str(Problem("f", 3, 7, "CODE", "What.")) == "f:3:7: CODE What."
    assert str(Problem("f", None, None, "CODE", "What.", "steps[2].retry")) == "f:steps[2].retry: CODE What."
    assert str(Problem("f", None, None, "CODE", "What.")) == "f: CODE What."
    assert path_text(("steps", 2, "with", "a b", 0)) == "steps[2].with['a b'][0]"
