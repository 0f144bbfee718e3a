"""Conditions, policies and settings of a playbook."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.playbook import Do, Rule, Spacing
from runwright.core.expressions import check, check_single, condition_text, has_expression
from runwright.core.playscope import RESERVED_NAMES

from .fields import Fields
from .parts import make_part
from .problems import EXPRESSION, STEP, Findings, Path, did_you_mean

ELSE_IS_LAST = "`else` comes last, and so does a rule without `when`: those after it would never be looked at."
ACTION = ("do", "attempts", "backoff", "delay", "to", "set_ctx", "set_iter", "set")


class Settings(msgspec.Struct):
    """What is to be set, and where."""

    ctx: dict[str, Any] = {}
    iter: dict[str, Any] = {}
    plain: dict[str, Any] = {}  # for the rest of the pipeline

    def __bool__(self) -> bool:
        return bool(self.ctx or self.iter or self.plain)


def check_texts(value: Any, path: Path, findings: Findings) -> None:
    """Refuse texts whose expressions cannot be read, wherever they stand in a value."""
    if isinstance(value, str):
        try:
            check(value)
        except RunwrightError as error:
            findings.error(path, EXPRESSION, error.detail)
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            check_texts(item, (*path, key), findings)
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            check_texts(item, (*path, at), findings)


def read_settings(fields: Fields, name: str, findings: Findings) -> Settings:
    """`set: {ctx.x: ..., iter.y: ..., step.z: ..., w: ...}`"""
    found = Settings()
    given = fields.mapping(name)
    for key, value in (given or {}).items():
        check_texts(value, (*fields.path, name, key), findings)
        scope, dot, rest = key.partition(".")
        if "." in rest:
            fields.wrong(name, f"{key!r} cannot be set: write {scope}.{rest.partition('.')[0]}, with a mapping.")
        elif dot and scope == "ctx":
            found.ctx[rest] = value
        elif dot and scope == "iter":
            found.iter[rest] = value
        elif dot and scope == "step":
            found.plain[rest] = value
        elif dot:
            fields.wrong(name, f"{key!r} cannot be set: it is ctx.name, iter.name, step.name or a plain name.")
        else:
            found.plain[key] = value
    refuse_reserved(fields, name, (*found.iter, *found.plain))
    return found


def refuse_reserved(fields: Fields, name: str, keys: Collection[str]) -> None:
    """What is set for an iteration is read by its name, so that name must be free."""
    for key in keys:
        if key in RESERVED_NAMES:
            fields.wrong(name, f"{key!r} means something else in expressions. Set it under another name.")


def checked_condition(when: Any, path: Path, findings: Findings) -> str | bool | None:
    """A condition, if it is one: an expression, with or without its braces, or true or false."""
    if isinstance(when, str):
        try:
            check_single(condition_text(when))
        except RunwrightError as error:
            findings.error(path, EXPRESSION, error.detail)
        return when
    if when is None or isinstance(when, bool):
        return when
    findings.error(path, STEP, "`when` is an expression, true or false.")
    return None


def read_condition(rule: Any, path: Path, findings: Findings) -> tuple[str | bool | None, dict[str, Any] | None]:
    """`{when, then}` or `{else: {then}}`: the condition, None if there is none, and what follows."""
    if not isinstance(rule, dict):
        findings.error(path, STEP, "A rule is a mapping with `when` and `then`, or with `else`.")
        return None, None
    given = cast("dict[str, Any]", rule)
    fields = Fields(given, path, STEP, findings)
    fields.refuse_unknown(("when", "then", "else"), "A rule")
    if "else" in given:
        if "when" in given:
            fields.wrong("else", "A rule has `when` or `else`, not both.", on_key=True)
        if given["else"] is None and "then" in given:
            return None, fields.mapping("then")
        part = fields.part("else")
        then = None if part is None else part.mapping("then")
        return None, then if then is not None or part is None else fields.mapping("else")
    return checked_condition(given.get("when"), (*path, "when"), findings), fields.mapping("then")


def read_rules(policy: Any, path: Path, labels: Collection[str], findings: Findings) -> tuple[Rule, ...] | None:
    if not isinstance(policy, dict) or not isinstance(policy.get("rules"), list):  # pyright: ignore[reportUnknownMemberType]
        findings.error(path, STEP, "A policy is a mapping with `rules`, a list of `when` and `then`.")
        return None
    Fields(cast("dict[str, Any]", policy), path, STEP, findings).refuse_unknown(("rules",), "A policy")
    rules: list[Rule] = []
    for at, given in enumerate(cast("list[Any]", policy["rules"])):
        where = (*path, "rules", at)
        when, then = read_condition(given, where, findings)
        if then is None or then.get("do") is None:
            findings.error(where, STEP, "A rule says what to do: `then: {do: continue}`, retry, jump, break or fail.")
            continue
        rules.append(_rule(when, then, (*where, "then"), labels, findings))
        if given.get("when") is None and at + 1 < len(policy["rules"]):  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            findings.error(where, STEP, ELSE_IS_LAST)
    if rules and all(rule.when is not None for rule in rules):
        findings.warning(path, "When none of these rules matches, the pipeline continues. Say so with a last `else`.")
    return tuple(rules)


def _rule(
    when: str | bool | None, then: dict[str, Any], path: Path, labels: Collection[str], findings: Findings
) -> Rule:
    fields = Fields(then, path, STEP, findings)
    fields.refuse_unknown(ACTION, "What a rule does")
    do = fields.choice("do", Do.CONTINUE)
    to = fields.text("to")
    for name, whose in (("to", Do.JUMP), *((name, Do.RETRY) for name in ("attempts", "backoff", "delay"))):
        if name in fields and do is not whose:
            findings.warning((*path, name), f"`{name}` is not looked at: it belongs to `do: {whose}`.")
    if do is not Do.RETRY:
        fields = fields.without("attempts", "backoff", "delay")
    if do is Do.JUMP and to not in labels:
        sentence = f"There is no task {to!r} in this pipeline.{did_you_mean(to, labels)}" if to else "A jump has `to`."
        fields.wrong("to" if to else None, sentence)
    settings = read_settings(fields, "set", findings)
    for name, target in (("set_ctx", settings.ctx), ("set_iter", settings.iter)):
        given = fields.mapping(name) or {}
        check_texts(given, (*path, name), findings)
        if name == "set_iter":
            refuse_reserved(fields, name, [key.removeprefix("iter.") for key in given])
        target |= {key.removeprefix("ctx.").removeprefix("iter."): value for key, value in given.items()}
    return make_part(
        Rule,
        when=when,
        do=do,
        attempts=_number(fields, "attempts", 3 if do is Do.RETRY else 1, 1, 10_000, findings),
        backoff=Spacing.NONE if fields.raw("backoff") in _STEADY else fields.choice("backoff", Spacing.NONE),
        delay=_number(fields, "delay", 0.0, 0, 7 * 24 * 3600.0, findings),
        to=to if do is Do.JUMP else None,
        set_ctx=settings.ctx,
        set_iter={**settings.plain, **settings.iter},
    )


_STEADY = ("fixed", "constant")
"""Other words for a delay that stays the same."""


def _number(fields: Fields, name: str, default: Any, least: float, most: float, findings: Findings) -> Any:
    value = fields.raw(name)
    if value is None:
        return default
    if isinstance(value, str) and has_expression(value):
        check_texts(value, (*fields.path, name), findings)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        fields.wrong(name, f"`{name}` is a number from {least:g} to {most:g}, or an expression that gives one.")
        return default
    return value
