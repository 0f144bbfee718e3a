"""Header of a plan: metadata, parameters and their types, order, failure mode, timeout.

Every field of `metadata` may also be written at the top level; there `planId` is `plan` and `planVersion` is `version`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec

from runwright.contract.capabilities import ADAPTERS, FALLBACKS
from runwright.contract.envelope import MAX_ID_CHARS
from runwright.contract.plan import OnFailure, Order, ParamType, PlanMetadata
from runwright.contract.plan_struct import make_canonical
from runwright.core.expressions.template import contains_expression

from .field_reader import FieldReader
from .problems import INVALID_PLAN, INVALID_STEP, ProblemCollector, did_you_mean
from .secret_refs import find_secret_values

API_VERSION = "runwright/v1"
_TOP_LEVEL_NAMES = {"planId": "plan", "planVersion": "version"}
_METADATA = (
    "planId",
    "planVersion",
    "description",
    "labels",
    "requiresCapabilities",
    "fallbackBehavior",
    "targetAdapter",
)
FIELDS = (
    *(_TOP_LEVEL_NAMES.get(name, name) for name in _METADATA),
    "apiVersion",
    "kind",
    "metadata",
    "params",
    "paramTypes",
    "order",
    "onFailure",
    "timeout",
    "steps",
    "result",
)


class PlanHeader(msgspec.Struct):
    metadata: PlanMetadata
    params: dict[str, Any]
    param_types: dict[str, ParamType]
    order: Order | None  # None: derived from the steps
    on_failure: OnFailure
    timeout: float | None
    result: Any


def read_header(top: FieldReader, problems: ProblemCollector) -> PlanHeader:
    top.reject_unknown(FIELDS, "a plan")
    for name, expected in (("apiVersion", API_VERSION), ("kind", "Plan")):
        if name in top and top.raw(name) != expected:
            top.error(name, f"`{name}` must be {expected}.")
    params = _params(top, problems)
    return PlanHeader(
        metadata=_metadata(top),
        params=params,
        param_types=_param_types(top, params),
        order=_order(top),
        on_failure=top.choice("onFailure", OnFailure.FAIL),
        timeout=top.timeout(),
        result=top.raw("result"),
    )


class _MetadataField(NamedTuple):
    """A field of the metadata, where it was written: in `metadata` or at the top level."""

    fields: FieldReader
    name: str


def _metadata(top: FieldReader) -> PlanMetadata:
    nested = top.nested("metadata")
    if nested is not None:
        nested.reject_unknown(_METADATA, "`metadata`")
    found: dict[str, _MetadataField] = {}
    for name in _METADATA:
        top_name = _TOP_LEVEL_NAMES.get(name, name)
        if nested is None or name not in nested:
            found[name] = _MetadataField(top, top_name)
            continue
        found[name] = _MetadataField(nested, name)
        if top_name in top:
            top.error(top_name, f"`{top_name}` is given twice: here and as metadata.{name}.", on_key=True)
    description, capabilities = found["description"], found["requiresCapabilities"]
    return make_canonical(
        PlanMetadata,
        plan_id=read_identifier(*found["planId"], required=True),
        plan_version=read_identifier(*found["planVersion"]),
        description=description.fields.text(description.name),
        labels=_labels(*found["labels"]),
        requires_capabilities=capabilities.fields.texts(capabilities.name),
        fallback_behavior=_one_of(*found["fallbackBehavior"], FALLBACKS),
        target_adapter=_one_of(*found["targetAdapter"], ADAPTERS),
    )


def _one_of(fields: FieldReader, name: str, known: tuple[str, ...]) -> str | None:
    value = fields.text(name)
    if value is not None and value not in known:
        fields.error(name, f"`{name}` must be one of {', '.join(known)}.{did_you_mean(value, known)}")
    return value


def read_identifier(fields: FieldReader, name: str, required: bool = False) -> str:
    """Read a name that becomes part of the idempotency key of every event."""
    text = fields.text(name)
    if text is None:
        if required and name not in fields:
            fields.error(None, "The plan has no name. Begin it with `plan: NAME`.")
        return ""
    if not text:
        fields.error(name, f"`{name}` must not be empty.")
    elif "|" in text:
        fields.error(name, f"`{name}` must not contain |, which separates the parts of a key.")
    elif not text.isprintable():
        fields.error(name, f"`{name}` must not contain control characters.")
    elif len(text) > MAX_ID_CHARS:
        fields.error(name, f"`{name}` must have at most {MAX_ID_CHARS} characters.")
    return text


def _labels(fields: FieldReader, name: str) -> dict[str, str]:
    labels = fields.mapping(name) or {}
    if all(isinstance(value, str) for value in labels.values()):
        return cast("dict[str, str]", labels)
    fields.error(name, f"`{name}` must map names to strings; put numbers in quotes.")
    return {}


def _order(top: FieldReader) -> Order | None:
    if "order" not in top:
        return None
    if top.raw("order") == Order.ROUTED:
        top.error("order", "`order` must be sequential or graph; only playbooks are routed by arcs.")
        return Order.GRAPH
    return top.choice("order", Order.GRAPH)


def _params(top: FieldReader, problems: ProblemCollector) -> dict[str, Any]:
    params = top.mapping("params") or {}
    path = (*top.path, "params")
    for name, value in params.items():
        if not name:
            problems.error(path, INVALID_PLAN, "The name of a parameter must not be empty.")
        if contains_expression(value):
            sentence = f"The parameter {name!r} contains {{{{ }}}}, but expressions in parameters are not evaluated."
            problems.warning((*path, name), sentence)
    for secret_path, sentence in find_secret_values(params, path):
        problems.error(secret_path, INVALID_STEP, sentence)
    return params


def _param_types(top: FieldReader, params: dict[str, Any]) -> dict[str, ParamType]:
    types: dict[str, ParamType] = {}
    nested = top.nested("paramTypes")
    if nested is None:
        return types
    for name in top.mapping("paramTypes") or {}:
        param_type = types[name] = nested.choice(name, ParamType.ANY)
        default = params.get(name)
        if default is not None and not matches_param_type(default, param_type):
            nested.error(name, f"The default of {name!r} must be {describe_param_type(param_type)}.")
    return types


_PYTHON_TYPES: dict[ParamType, tuple[type, ...]] = {
    ParamType.STRING: (str,),
    ParamType.INTEGER: (int,),
    ParamType.NUMBER: (int, float),
    ParamType.BOOLEAN: (bool,),
    ParamType.LIST: (list,),
    ParamType.OBJECT: (dict,),
}
_DESCRIPTIONS = {
    ParamType.STRING: "a string",
    ParamType.INTEGER: "an integer",
    ParamType.NUMBER: "a number",
    ParamType.BOOLEAN: "true or false",
    ParamType.LIST: "a list, such as [1, 2]",
    ParamType.OBJECT: 'an object, such as {"a": 1}',
    ParamType.ANY: "anything",
}


def matches_param_type(value: Any, param_type: ParamType) -> bool:
    if param_type is ParamType.ANY:
        return True
    if isinstance(value, bool):
        return param_type is ParamType.BOOLEAN
    return isinstance(value, _PYTHON_TYPES[param_type])


def param_type_of(default: Any) -> ParamType:
    """Infer the type of a parameter from its default: any for null, and number (not integer) for an integer."""
    if isinstance(default, bool):
        return ParamType.BOOLEAN
    for param_type in (ParamType.STRING, ParamType.NUMBER, ParamType.LIST, ParamType.OBJECT):
        if matches_param_type(default, param_type):
            return param_type
    return ParamType.ANY


def describe_param_type(param_type: ParamType) -> str:
    return _DESCRIPTIONS[param_type]
