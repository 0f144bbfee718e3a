"""Steps of a plan: parse the mapping of one step."""

from __future__ import annotations

import keyword
from typing import Any, NamedTuple, cast

import msgspec

from runwright.contract.paths import RESERVED
from runwright.contract.plan import Backoff, Foreach, Retry, Step, StepClass
from runwright.contract.plan_struct import make_canonical
from runwright.core.expressions.template import contains_expression, has_expression

from .field_reader import FieldReader
from .input_checks import ToolsByKind, check_inputs, code_of
from .problems import INVALID_PLAN, INVALID_STEP, DocumentPath, ProblemCollector, did_you_mean, quoted_list
from .secret_refs import find_secret_values

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
PLAN_SCOPE = frozenset({"params", "steps", "run", "step"})
"""The names that every expression of a plan may use."""

_RESERVED_NAMES = PLAN_SCOPE | {
    "index", "range", "true", "false", "none", "not", "and", "or", "is", "in", "if", "else",
}  # fmt: skip
MAX_ID_CHARS = 256  # tasks and iterations append to the step id, and an entity path has at most 512 characters


class ParsedStep(msgspec.Struct):
    """A step and its position in the document."""

    step: Step
    path: DocumentPath
    inputs_path: DocumentPath
    main_input: str | None = None  # the only input, if it was given as `<kind>: value`

    def input_path(self, path: DocumentPath) -> DocumentPath:
        """Return the document path of an input."""
        return (*self.inputs_path, *path) if self.main_input is None or not path else (*self.inputs_path, *path[1:])


class _StepInputs(NamedTuple):
    """The kind of a step and its inputs. An invalid kind is None."""

    kind: str | None
    values: dict[str, Any]
    field: str = ""  # the field of the step that holds the inputs; empty if there is none
    main_input: str | None = None


def read_step(data: Any, path: DocumentPath, tools: ToolsByKind, problems: ProblemCollector) -> ParsedStep | None:
    """Parse a step; None if it has no id. Invalid fields are reported and have their defaults."""
    if not isinstance(data, dict):
        problems.error(path, INVALID_STEP, "A step must be a mapping with an id and a kind.")
        return None
    fields = FieldReader(cast("dict[str, Any]", data), path, INVALID_STEP, problems)
    errors_before = len(problems.errors)
    step_id = _step_id(fields, problems)
    inputs = _read_inputs(fields, tools, list(cast("dict[str, Any]", data)))
    when = fields.raw("when")
    if when is not None and not isinstance(when, str | bool):
        fields.error("when", "`when` must be an expression, true or false.")
        when = None
    step = make_canonical(
        Step,
        step_id=step_id or "",
        kind=inputs.kind or "",
        inputs=inputs.values,
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
    parsed = ParsedStep(step, path, (*path, inputs.field) if inputs.field else path, inputs.main_input)
    for secret_path, sentence in find_secret_values(inputs.values, ()):
        problems.error(parsed.input_path(secret_path), INVALID_STEP, sentence)
    if inputs.kind is not None:
        _check_inputs(parsed, tools, problems, errors_before)
    return parsed if step_id else None


def _step_id(fields: FieldReader, problems: ProblemCollector) -> str | None:
    if "id" in fields and "stepId" in fields:
        fields.error("stepId", "`id` and `stepId` are the same field. Use one of them.", on_key=True)
    name = "stepId" if "stepId" in fields else "id"
    step_id = fields.text(name)
    if not step_id:
        if name not in fields or step_id == "":
            problems.error(fields.path, INVALID_PLAN, "The step has no id.")
        return None
    check_entity_name(fields, name, step_id, "id")
    return step_id


def check_entity_name(fields: FieldReader, field: str | None, name: str, noun: str) -> None:
    """Reject a name that cannot be part of an entity path. `noun`: what the name is, such as `id` or `label`."""
    if len(name) > MAX_ID_CHARS:
        fields.error(field, f"Invalid {noun}: it must have at most {MAX_ID_CHARS} characters.")
    invalid = f"Invalid {noun} {name[:MAX_ID_CHARS]!r}"
    if name == "signal":
        fields.error(field, f"{invalid}: reserved for the entity paths of signals.")
    if RESERVED & set(name):
        found, reserved = " ".join(sorted(RESERVED & set(name))), " ".join(sorted(RESERVED))
        fields.error(field, f"{invalid}: it contains {found}; reserved characters are {reserved}")
    if not name.isprintable() or name != name.strip():
        fields.error(field, f"{invalid}: it must not contain control characters, or spaces at its ends.")


def _read_inputs(fields: FieldReader, tools: ToolsByKind, names: list[str]) -> _StepInputs:
    """Find the kind of a step: `kind: KIND` with its inputs under `with`, or the short form `KIND: inputs`."""
    unknown = [name for name in names if name not in FIELDS and name not in tools]
    for name in unknown:
        advice = did_you_mean(name, (*FIELDS, *tools))
        fields.error(name, f"Unknown field or kind {name!r} in a step.{advice}", on_key=True)
    kind_fields = [name for name in names if name not in FIELDS and name in tools]
    if "kind" in fields:
        kind_fields.insert(0, "kind")
    if not kind_fields:
        if not unknown:
            fields.error(None, f"The step has no kind. Use one of {quoted_list(sorted(tools))}.")
        return _StepInputs(None, {})
    if len(kind_fields) > 1:
        sentence = f"A step must have one kind; this one has {quoted_list(kind_fields)}."
        fields.error(kind_fields[1], sentence, on_key=True)
        return _StepInputs(None, {})
    if kind_fields == ["kind"]:
        return _inputs_in(fields, tools, _explicit_kind(fields, tools), "with")
    kind = kind_fields[0]
    if "with" in fields:
        fields.error("with", f"Write the inputs under `{kind}`, or use `kind: {kind}` and `with`.", on_key=True)
    return _inputs_in(fields, tools, kind, kind)


def _explicit_kind(fields: FieldReader, tools: ToolsByKind) -> str | None:
    kind = fields.text("kind")
    if kind is not None and kind not in tools:
        fields.error("kind", f"Unknown kind {kind!r}.{did_you_mean(kind, tools)}")
        return None
    return kind


def _inputs_in(fields: FieldReader, tools: ToolsByKind, kind: str | None, field: str) -> _StepInputs:
    value = fields.raw(field)
    if value is None:
        return _StepInputs(kind, {}, field if field in fields else "")
    if isinstance(value, dict):
        return _StepInputs(kind, cast("dict[str, Any]", value), field)
    main_input = tools[kind].main_input if kind is not None else None
    if main_input is None:
        if kind is not None:
            fields.error(field, f"The inputs of `{kind}` must be a mapping.")
        return _StepInputs(None, {}, field)
    return _StepInputs(kind, {main_input: value}, field, main_input)


def _check_inputs(parsed: ParsedStep, tools: ToolsByKind, problems: ProblemCollector, errors_before: int) -> None:
    step = parsed.step
    tool = tools[step.kind]
    found = check_inputs(step.kind, tool, step.inputs)
    for each in found:
        problems.error(parsed.input_path(each.path), INVALID_STEP, each.sentence, on_key=each.on_key)
    if found or len(problems.errors) > errors_before:
        return  # the tool's own check may rely on inputs of the right types
    sentence = tool.check(step.inputs, step)
    if sentence:
        problems.error(parsed.inputs_path, code_of(sentence), sentence)


def read_dispatch(fields: FieldReader) -> dict[str, str] | None:
    """Read the task queue from which workers claim the step: a name, or `{queue: NAME}`."""
    dispatch = fields.raw("dispatch")
    if dispatch is None:
        return None
    queue: Any = dispatch
    if isinstance(dispatch, dict) and set(cast("dict[Any, Any]", dispatch)) == {"queue"}:
        queue = cast("dict[str, Any]", dispatch)["queue"]
    if isinstance(queue, str) and contains_expression(queue):
        sentence = "`dispatch` must not contain expressions: the queue must be known before the run starts."
        fields.error("dispatch", sentence)
        return None
    if isinstance(queue, str) and 0 < len(queue) <= 128 and queue.isprintable():
        return {"queue": queue}
    fields.error("dispatch", "`dispatch` must name a queue: {queue: NAME}.")
    return None


def _retry(fields: FieldReader) -> Retry:
    nested = fields.nested("retry")
    if nested is None:
        return Retry()
    nested.reject_unknown(("maxAttempts", "backoff", "initial", "max", "jitter"), "`retry`")
    default = Retry()
    retry = make_canonical(
        Retry,
        max_attempts=nested.integer("maxAttempts", default.max_attempts, 1, 1000),
        backoff=nested.choice("backoff", Backoff.EXPONENTIAL),
        initial=nested.duration("initial", default.initial),
        longest=nested.duration("max", default.longest),
        jitter=nested.flag("jitter", default.jitter),
    )
    if retry.initial > retry.longest:
        nested.error("initial", "`initial` must not be longer than `max` (default: 60s).")
    return retry


def _foreach(fields: FieldReader) -> Foreach | None:
    value = fields.raw("foreach")
    if value is None:
        return None
    if isinstance(value, str | list):
        return Foreach(_foreach_items(fields, "foreach", value))
    nested = fields.nested("foreach")
    if nested is None:
        return None
    nested.reject_unknown(("in", "as", "maxParallel"), "`foreach`")
    if "in" not in nested:
        nested.error(None, "`foreach` requires `in`: a list, or an expression that returns one.")
        return None
    name = nested.text("as") or "item"
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in _RESERVED_NAMES:
        sentence = f"Invalid item name {name!r}: it must be an identifier that has no other meaning in expressions."
        nested.error("as", sentence)
    return make_canonical(
        Foreach,
        items=_foreach_items(nested, "in", nested.raw("in")),
        item_name=name,
        max_parallel=nested.integer("maxParallel", 16, 1, 10_000),
    )


def _foreach_items(fields: FieldReader, name: str, value: Any) -> Any:
    items: Any = value.strip() if isinstance(value, str) else value
    if not isinstance(items, list) and not has_expression(items):
        fields.error(name, "`foreach` must be a list, or one {{ expression }} that returns a list.")
    return cast("Any", items)
