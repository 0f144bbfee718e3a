"""One step of a plan, from its mapping."""

from __future__ import annotations

import keyword
from typing import Any, cast

import msgspec

from runwright.contract.paths import RESERVED
from runwright.contract.plan import Backoff, Foreach, Retry, Step, StepClass
from runwright.core.expressions import any_expression, has_expression

from .fields import Fields
from .inputs import misfits
from .kinds import Kinds
from .parts import make_part
from .problems import PLAN, STEP, Findings, Path, did_you_mean, listed
from .secrets import find_secrets

FIELDS = (
    "id",
    "stepId",
    "kind",
    "with",
    "dependsOn",
    "when",
    "foreach",
    "retry",
    "timeout",
    "class",
    "cancellable",
    "secretRefs",
    "dispatch",
    "fallback",
    "needsApproval",
)
SCOPE = frozenset({"params", "steps", "run", "step"})
"""The names that every expression of a plan has."""

_TAKEN = SCOPE | {"index", "range", "true", "false", "none", "not", "and", "or", "is", "in", "if", "else"}
LONGEST_ID = 256  # what happens inside a step adds to it, and an entity's path has 512 characters at most


class ReadStep(msgspec.Struct):
    """A step, and where it came from."""

    step: Step
    path: Path
    inputs_path: Path
    main: str | None = None  # the one input that was given as `<kind>: value`

    def input_path(self, path: Path) -> Path:
        """Where an input stands in the document."""
        return (*self.inputs_path, *path) if self.main is None or not path else (*self.inputs_path, *path[1:])


def read_step(data: Any, path: Path, kinds: Kinds, findings: Findings) -> ReadStep | None:
    """The step, or None where it cannot even be named. What is wrong in it is noted and left at its default."""
    if not isinstance(data, dict):
        findings.error(path, STEP, "A step is a mapping with an id and a kind.")
        return None
    fields = Fields(cast("dict[str, Any]", data), path, STEP, findings)
    errors_before = len(findings.errors)
    step_id = _step_id(fields, findings)
    kind, inputs, where, main = _kind(fields, kinds, list(cast("dict[str, Any]", data)))
    when = fields.raw("when")
    if when is not None and not isinstance(when, str | bool):
        fields.wrong("when", "`when` is an expression, true or false.")
        when = None
    step = make_part(
        Step,
        step_id=step_id or "",
        kind=kind or "",
        inputs=inputs,
        depends_on=fields.texts("dependsOn"),
        when=when.strip() if isinstance(when, str) else when,
        foreach=_foreach(fields),
        retry=_retry(fields),
        timeout=fields.timeout(),
        step_class=fields.choice("class", StepClass.LIGHT),
        cancellable=fields.flag("cancellable", True),
        needs_approval=fields.flag("needsApproval", False),
        secret_refs=fields.texts("secretRefs"),
        dispatch=read_dispatch(fields),
        fallback=fields.raw("fallback"),
    )
    read = ReadStep(step, path, (*path, where) if where else path, main)
    for place, sentence in find_secrets(inputs, ()):
        findings.error(read.input_path(place), STEP, sentence)
    if kind is not None:
        _check_inputs(read, kinds, findings, errors_before)
    return read if step_id else None


def _step_id(fields: Fields, findings: Findings) -> str | None:
    if "id" in fields and "stepId" in fields:
        fields.wrong("stepId", "`id` and `stepId` are the same; give one of them.", on_key=True)
    name = "stepId" if "stepId" in fields else "id"
    step_id = fields.text(name)
    if not step_id:
        if name not in fields or step_id == "":
            findings.error(fields.path, PLAN, "This step has no id.")
        return None
    check_name(fields, name, step_id, "id")
    return step_id


def check_name(fields: Fields, field: str | None, name: str, what: str) -> None:
    """Refuse what cannot stand in an entity's path."""
    if name == "signal":
        fields.wrong(field, "No step can be called 'signal': signals have paths that begin so.")
    if RESERVED & set(name):
        found, none = " ".join(sorted(RESERVED & set(name))), " ".join(sorted(RESERVED))
        fields.wrong(field, f"The {what} {name!r} holds {found}; {what}s hold none of {none}")
    one = f"An {what}" if what == "id" else f"A {what}"
    if not name.isprintable() or name != name.strip():
        fields.wrong(field, f"{one} has no control characters, and no spaces at its ends.")
    if len(name) > LONGEST_ID:
        fields.wrong(field, f"{one} has {LONGEST_ID} characters at most.")


def _kind(fields: Fields, kinds: Kinds, names: list[str]) -> tuple[str | None, dict[str, Any], str, str | None]:
    """The kind, its inputs, the field that holds them, and which input was given alone."""
    unknown = [name for name in names if name not in FIELDS and name not in kinds]
    for name in unknown:
        fields.wrong(
            name, f"There is no step field or kind {name!r}.{did_you_mean(name, (*FIELDS, *kinds))}", on_key=True
        )
    short = [name for name in names if name not in FIELDS and name in kinds]
    if "kind" in fields:
        short.insert(0, "kind")
    if not short:
        if not unknown:
            fields.wrong(None, f"This step has no kind. Give it one of {listed(sorted(kinds))}.")
        return None, {}, "", None
    if len(short) > 1:
        fields.wrong(short[1], f"A step has one kind; this one has {listed(short)}.", on_key=True)
        return None, {}, "", None
    where = short[0]
    kind: str | None = where
    if where == "kind":
        where, kind = "with", fields.text("kind")
        if kind is not None and kind not in kinds:
            fields.wrong("kind", f"There is no kind {kind!r}.{did_you_mean(kind, kinds)}")
            kind = None
    elif "with" in fields:
        fields.wrong("with", f"The inputs belong under `{where}`, or write `kind: {where}` and `with`.", on_key=True)
    return _with_inputs(fields, kinds, kind, where)


def _with_inputs(
    fields: Fields, kinds: Kinds, kind: str | None, where: str
) -> tuple[str | None, dict[str, Any], str, str | None]:
    value = fields.raw(where)
    if value is None:
        return kind, {}, where if where in fields else "", None
    if isinstance(value, dict):
        return kind, cast("dict[str, Any]", value), where, None
    main = kinds[kind].main_input if kind is not None else None
    if main is None:
        if kind is not None:
            fields.wrong(where, f"`{kind}` takes a mapping of inputs.")
        return None, {}, where, None
    return kind, {main: value}, where, main


def _check_inputs(read: ReadStep, kinds: Kinds, findings: Findings, errors_before: int) -> None:
    step = read.step
    found = misfits(step.kind, kinds[step.kind], step.inputs)
    for path, sentence, on_key in found:
        findings.error(read.input_path(path), STEP, sentence, on_key=on_key)
    if found or len(findings.errors) > errors_before:
        return  # a tool is asked only about what it can make sense of
    sentence = kinds[step.kind].check(step.inputs, step)
    if sentence:
        findings.error(read.inputs_path, STEP, sentence)


def read_dispatch(fields: Fields) -> dict[str, str] | None:
    """Where workers find the step: the name of a queue, alone or as `{queue: NAME}`."""
    given = fields.raw("dispatch")
    if given is None:
        return None
    queue: Any = given
    if isinstance(given, dict) and set(cast("dict[Any, Any]", given)) == {"queue"}:
        queue = cast("dict[str, Any]", given)["queue"]
    if isinstance(queue, str) and any_expression(queue):
        fields.wrong("dispatch", "Which queue it is must be known from the start: it has no expressions.")
        return None
    if isinstance(queue, str) and 0 < len(queue) <= 128 and queue.isprintable():
        return {"queue": queue}
    fields.wrong("dispatch", "`dispatch` names a queue: {queue: NAME}.")
    return None


def _retry(fields: Fields) -> Retry:
    part = fields.part("retry")
    if part is None:
        return Retry()
    part.refuse_unknown(("maxAttempts", "backoff", "initial", "max", "jitter"), "`retry`")
    usual = Retry()
    retry = make_part(
        Retry,
        max_attempts=part.whole("maxAttempts", usual.max_attempts, 1, 1000),
        backoff=part.choice("backoff", Backoff.EXPONENTIAL),
        initial=part.duration("initial", usual.initial),
        longest=part.duration("max", usual.longest),
        jitter=part.flag("jitter", usual.jitter),
    )
    if retry.initial > retry.longest:
        part.wrong(
            "initial", "`initial` is longer than `max` (60s unless it is given), so it would never be waited for."
        )
    return retry


def _foreach(fields: Fields) -> Foreach | None:
    value = fields.raw("foreach")
    if value is None:
        return None
    if isinstance(value, str | list):
        return _goes_over(fields, "foreach", value)
    part = fields.part("foreach")
    if part is None:
        return None
    part.refuse_unknown(("in", "as", "maxParallel"), "`foreach`")
    if "in" not in part:
        part.wrong(None, "`foreach` needs `in`: a list, or an expression that gives one.")
        return None
    name = part.text("as") or "item"
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in _TAKEN:
        part.wrong("as", f"{name!r} cannot be the name of an item; take a word that is not used otherwise.")
    items = _goes_over(part, "in", part.raw("in")).items
    return make_part(Foreach, items=items, item_name=name, max_parallel=part.whole("maxParallel", 16, 1, 10_000))


def _goes_over(fields: Fields, name: str, value: Any) -> Foreach:
    value = value.strip() if isinstance(value, str) else value
    if not isinstance(value, list) and not has_expression(value):
        fields.wrong(name, "`foreach` goes over a list, or over what one {{ expression }} gives.")
    return Foreach(value)
