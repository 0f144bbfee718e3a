"""Conditions, policy rules and assignments (`set`) of a playbook, and legacy names of end events in conditions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, cast

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.plan_struct import make_canonical
from runwright.contract.playbook import PolicyAction, PolicyRule, RetrySpacing
from runwright.core.expressions.template import check, check_single, condition_text, has_expression
from runwright.core.playbook.scope import RESERVED_NAMES
from runwright.plans.field_reader import FieldReader
from runwright.plans.problems import INVALID_EXPRESSION, INVALID_STEP, DocumentPath, ProblemCollector, did_you_mean

ELSE_IS_LAST = "`else`, or a rule without `when`, must be the last rule: later rules would never be evaluated."
ACTION_FIELDS = ("do", "attempts", "backoff", "delay", "to", "set_ctx", "set_iter", "set")
_RETRY_FIELDS = ("attempts", "backoff", "delay")
_CONSTANT_BACKOFF = ("fixed", "constant")
"""Other spellings of a constant delay."""

MAX_ATTEMPTS = 10_000
MAX_DELAY = 7 * 24 * 3600.0  # seconds


class Assignments(msgspec.Struct):
    """The values that a `set` assigns, by scope."""

    ctx: dict[str, Any] = {}
    iter: dict[str, Any] = {}
    plain: dict[str, Any] = {}  # for the rest of the pipeline

    def __bool__(self) -> bool:
        return bool(self.ctx or self.iter or self.plain)


def check_expressions(value: Any, path: DocumentPath, problems: ProblemCollector) -> None:
    """Report texts with invalid expressions, at any depth of a value."""
    if isinstance(value, str):
        try:
            check(value)
        except RunwrightError as error:
            problems.error(path, INVALID_EXPRESSION, error.detail)
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            check_expressions(item, (*path, key), problems)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            check_expressions(item, (*path, index), problems)


def read_assignments(fields: FieldReader, name: str, problems: ProblemCollector) -> Assignments:
    """Read `set: {ctx.x: ..., iter.y: ..., step.z: ..., w: ...}`."""
    assignments = Assignments()
    for key, value in (fields.mapping(name) or {}).items():
        check_expressions(value, (*fields.path, name, key), problems)
        scope, dot, rest = key.partition(".")
        if "." in rest:
            advice = f"Write {scope}.{rest.partition('.')[0]}, with a mapping."
            fields.error(name, f"Cannot set {key!r}. {advice}")
        elif dot and scope == "ctx":
            assignments.ctx[rest] = value
        elif dot and scope == "iter":
            assignments.iter[rest] = value
        elif dot and scope == "step":
            assignments.plain[rest] = value
        elif dot:
            fields.error(name, f"Cannot set {key!r}. Use ctx.name, iter.name, step.name or a plain name.")
        else:
            assignments.plain[key] = value
    reject_reserved(fields, name, (*assignments.iter, *assignments.plain))
    return assignments


def reject_reserved(fields: FieldReader, name: str, keys: Collection[str]) -> None:
    """Report reserved names: expressions read an iteration's values by their plain names."""
    for key in keys:
        if key in RESERVED_NAMES:
            fields.error(name, f"The name {key!r} is reserved in expressions. Use another name.")


def read_condition_text(when: Any, path: DocumentPath, problems: ProblemCollector) -> str | bool | None:
    """Check a condition: an expression, with or without braces, or true or false. Return None if it is absent."""
    if isinstance(when, str):
        try:
            check_single(condition_text(when))
        except RunwrightError as error:
            problems.error(path, INVALID_EXPRESSION, error.detail)
        return when
    if when is None or isinstance(when, bool):
        return when
    problems.error(path, INVALID_STEP, "`when` must be an expression, true or false.")
    return None


class ParsedRule(NamedTuple):
    when: str | bool | None  # None: always
    then: dict[str, Any] | None  # None: absent or invalid


def read_rule(rule: Any, path: DocumentPath, problems: ProblemCollector) -> ParsedRule:
    """Read `{when, then}` or `{else: {then}}`."""
    if not isinstance(rule, dict):
        problems.error(path, INVALID_STEP, "A rule must be a mapping with `when` and `then`, or with `else`.")
        return ParsedRule(None, None)
    data = cast("dict[str, Any]", rule)
    fields = FieldReader(data, path, INVALID_STEP, problems)
    fields.reject_unknown(("when", "then", "else"), "a rule")
    if "else" in data:
        if "when" in data:
            fields.error("else", "A rule must have `when` or `else`, not both.", on_key=True)
        if data["else"] is None and "then" in data:
            return ParsedRule(None, fields.mapping("then"))
        nested = fields.nested("else")
        then = None if nested is None else nested.mapping("then")
        return ParsedRule(None, then if then is not None or nested is None else fields.mapping("else"))
    return ParsedRule(read_condition_text(data.get("when"), (*path, "when"), problems), fields.mapping("then"))


def read_rules(
    policy: Any, path: DocumentPath, labels: Collection[str], problems: ProblemCollector
) -> tuple[PolicyRule, ...] | None:
    if not isinstance(policy, dict) or not isinstance(policy.get("rules"), list):  # pyright: ignore[reportUnknownMemberType]
        problems.error(path, INVALID_STEP, "A policy must be a mapping with `rules`, a list of `when` and `then`.")
        return None
    FieldReader(cast("dict[str, Any]", policy), path, INVALID_STEP, problems).reject_unknown(("rules",), "a policy")
    rules: list[PolicyRule] = []
    data = cast("list[Any]", policy["rules"])
    for index, item in enumerate(data):
        rule_path = (*path, "rules", index)
        when, then = read_rule(item, rule_path, problems)
        if then is None or then.get("do") is None:
            sentence = "A rule must have an action: `then: {do: continue}`, retry, jump, break or fail."
            problems.error(rule_path, INVALID_STEP, sentence)
            continue
        rules.append(_rule(when, then, (*rule_path, "then"), labels, problems))
        if item.get("when") is None and index + 1 < len(data):
            problems.error(rule_path, INVALID_STEP, ELSE_IS_LAST)
    if rules and all(rule.when is not None for rule in rules):
        problems.warning(path, "If none of these rules matches, the pipeline continues. Add a final `else` rule.")
    return tuple(rules)


def _rule(
    when: str | bool | None,
    then: dict[str, Any],
    path: DocumentPath,
    labels: Collection[str],
    problems: ProblemCollector,
) -> PolicyRule:
    fields = FieldReader(then, path, INVALID_STEP, problems)
    fields.reject_unknown(ACTION_FIELDS, "the action of a rule")
    do = fields.choice("do", PolicyAction.CONTINUE)
    to = fields.text("to")
    for name, action in (("to", PolicyAction.JUMP), *((name, PolicyAction.RETRY) for name in _RETRY_FIELDS)):
        if name in fields and do is not action:
            problems.warning((*path, name), f"`{name}` is ignored: it belongs to `do: {action}`.")
    if do is not PolicyAction.RETRY:
        fields = fields.without(*_RETRY_FIELDS)
    if do is PolicyAction.JUMP and not to:
        fields.error(None, "A jump must have a target: `to`.")
    elif do is PolicyAction.JUMP and to not in labels:
        fields.error("to", f"Unknown task {to!r} in this pipeline.{did_you_mean(str(to), labels)}")
    assignments = _action_assignments(fields, problems)
    backoff = fields.raw("backoff")
    return make_canonical(
        PolicyRule,
        when=when,
        do=do,
        attempts=_number(fields, "attempts", 3 if do is PolicyAction.RETRY else 1, 1, MAX_ATTEMPTS, problems),
        backoff=RetrySpacing.NONE if backoff in _CONSTANT_BACKOFF else fields.choice("backoff", RetrySpacing.NONE),
        delay=_number(fields, "delay", 0.0, 0, MAX_DELAY, problems),
        to=to if do is PolicyAction.JUMP else None,
        set_ctx=assignments.ctx,
        set_iter={**assignments.plain, **assignments.iter},
    )


def _action_assignments(fields: FieldReader, problems: ProblemCollector) -> Assignments:
    """Read `set`, and the older `set_ctx` and `set_iter`, of an action."""
    assignments = read_assignments(fields, "set", problems)
    for name, target in (("set_ctx", assignments.ctx), ("set_iter", assignments.iter)):
        values = fields.mapping(name) or {}
        check_expressions(values, (*fields.path, name), problems)
        if name == "set_iter":
            reject_reserved(fields, name, [key.removeprefix("iter.") for key in values])
        target |= {key.removeprefix("ctx.").removeprefix("iter."): value for key, value in values.items()}
    return assignments


def _number(
    fields: FieldReader, name: str, default: Any, minimum: float, maximum: float, problems: ProblemCollector
) -> Any:
    value = fields.raw(name)
    if value is None:
        return default
    if isinstance(value, str) and has_expression(value):
        check_expressions(value, (*fields.path, name), problems)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        sentence = f"`{name}` must be a number from {minimum:g} to {maximum:g}, or an expression that returns one."
        fields.error(name, sentence)
        return default
    return value


# Legacy names of end events: older playbooks compare `event.name` with names that no event has any more.

STEP_DONE, LOOP_DONE = "step.done", "loop.done"

_LEGACY_EVENTS = ("call.done", "step.exit", "call.error")
_END_EVENTS = (STEP_DONE, LOOP_DONE)
_LEGACY_NAME = re.compile(rf"""(['"])({"|".join(map(re.escape, _LEGACY_EVENTS))})\1""")
_END_NAME = re.compile(rf"""(['"])({"|".join(map(re.escape, _END_EVENTS))})\1""")
_EVENT = r"""\(?\s*\bevent(?:\.name|\[['"]name['"]\]|\.get\(['"]name['"]\))\s*\)?(?:\s*\|\s*\w+)*"""
_TEXT = r"""(?:'[^']*'|"[^"]*")"""
_COMPARISON = re.compile(
    rf"""{_EVENT}\s*(?:[!=]=\s*{_TEXT}|(?:not\s+)?in\s*[\[(][^\])]*)"""
    rf"""|{_TEXT}\s*(?:[!=]=|(?:not\s+)?in\s*[\[(])\s*{_EVENT}"""
)
"""A comparison of an event's name with texts."""
_MENTIONS_EVENT = re.compile(r"\bevent\b")


def rename_legacy_events(when: Any, end_event: str | None, path: DocumentPath, problems: ProblemCollector) -> Any:
    """Replace legacy names of end events in a condition, with a warning for each.

    `end_event`: the event of a successful end of the steps that lead to the condition; None if it differs among them.
    """
    if not isinstance(when, str):
        return when
    replaced: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        name = "step.failed" if match[2] == "call.error" else end_event or STEP_DONE
        if name != match[2]:
            replaced[match[2]] = name
        return f"{match[1]}{name}{match[1]}"

    changed = when
    if end_event is not None:
        changed = _COMPARISON.sub(lambda comparison: _END_NAME.sub(replace, comparison[0]), changed)
    if _MENTIONS_EVENT.search(when):
        changed = _LEGACY_NAME.sub(replace, changed)
    for legacy, name in replaced.items():
        problems.warning(path, f"`{legacy}` is interpreted as `{name}`.")
    return changed


def predecessor_end_events(workflow: Any) -> dict[str, set[str]]:
    """Return for each step the events of a successful end of its predecessors. Invalid parts are skipped."""
    found: dict[str, set[str]] = {}
    for step in _mappings(workflow):
        end_event = LOOP_DONE if step.get("loop") is not None else STEP_DONE
        following: Any = step.get("next")
        arcs: Any = cast("dict[str, Any]", following).get("arcs") if isinstance(following, dict) else following
        names = [arcs] if isinstance(arcs, str) else [arc for arc in _list(arcs) if isinstance(arc, str)]
        for name in (*names, *(arc.get("step") for arc in _mappings(arcs))):
            if isinstance(name, str):
                found.setdefault(name, set()).add(end_event)
    return found


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    return (cast("dict[str, Any]", item) for item in _list(value) if isinstance(item, dict))


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
