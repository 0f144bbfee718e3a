"""What a plan says of itself: its name and version, and how it is to be run as a whole.

Every field of `metadata` may stand at the top as well; there `planId` is called `plan` and `planVersion` `version`.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from runwright.contract.capabilities import ADAPTERS, FALLBACKS
from runwright.contract.envelope import MAX_ID_CHARS
from runwright.contract.plan import OnFailure, Order, ParamType, PlanMetadata
from runwright.core.expressions import any_expression

from .fields import Fields
from .params import fits, in_words
from .parts import make_part
from .problems import PLAN, STEP, Findings, did_you_mean
from .secrets import find_secrets

API_VERSION = "runwright/v1"
_SHORT = {"planId": "plan", "planVersion": "version"}
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
    *(_SHORT.get(name, name) for name in _METADATA),
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


class Header(msgspec.Struct):
    metadata: PlanMetadata
    params: dict[str, Any]
    param_types: dict[str, ParamType]
    order: Order | None  # None: it follows from the steps
    on_failure: OnFailure
    timeout: float | None
    result: Any


def read_header(top: Fields, findings: Findings) -> Header:
    top.refuse_unknown(FIELDS, "A plan")
    for name, only in (("apiVersion", API_VERSION), ("kind", "Plan")):
        if name in top and top.raw(name) != only:
            top.wrong(name, f"`{name}` is {only}.")
    params = _params(top, findings)
    return Header(
        metadata=_metadata(top),
        params=params,
        param_types=_param_types(top, params),
        order=_order(top),
        on_failure=top.choice("onFailure", OnFailure.FAIL),
        timeout=top.timeout(),
        result=top.raw("result"),
    )


def _metadata(top: Fields) -> PlanMetadata:
    part = top.part("metadata")
    if part is not None:
        part.refuse_unknown(_METADATA, "`metadata`")
    homes: dict[str, tuple[Fields, str]] = {}
    for name in _METADATA:
        short = _SHORT.get(name, name)
        homes[name] = (part, name) if part is not None and name in part else (top, short)
        if part is not None and name in part and short in top:
            top.wrong(short, f"`{short}` is given twice: here and as metadata.{name}.", on_key=True)
    return make_part(
        PlanMetadata,
        plan_id=identity(*homes["planId"], required=True),
        plan_version=identity(*homes["planVersion"]),
        description=_text(homes["description"]),
        labels=_labels(*homes["labels"]),
        requires_capabilities=_texts(homes["requiresCapabilities"]),
        fallback_behavior=_word(homes["fallbackBehavior"], FALLBACKS),
        target_adapter=_word(homes["targetAdapter"], ADAPTERS),
    )


def _text(home: tuple[Fields, str]) -> str | None:
    fields, name = home
    return fields.text(name)


def _word(home: tuple[Fields, str], known: tuple[str, ...]) -> str | None:
    fields, name = home
    word = fields.text(name)
    if word is not None and word not in known:
        fields.wrong(name, f"`{name}` is one of {', '.join(known)}.{did_you_mean(word, known)}")
    return word


def _texts(home: tuple[Fields, str]) -> tuple[str, ...]:
    fields, name = home
    return fields.texts(name)


def identity(fields: Fields, name: str, required: bool = False) -> str:
    """A name that becomes part of every event's key."""
    text = fields.text(name)
    if text is None:
        if required and name not in fields:
            fields.wrong(None, "The plan has no name. Begin it with `plan: NAME`.")
        return ""
    if not text:
        fields.wrong(name, f"`{name}` is empty.")
    elif "|" in text:
        fields.wrong(name, f"`{name}` holds |, which separates the parts of a key.")
    elif not text.isprintable():
        fields.wrong(name, f"`{name}` holds a control character.")
    elif len(text) > MAX_ID_CHARS:
        fields.wrong(name, f"`{name}` has {MAX_ID_CHARS} characters at most.")
    return text


def _labels(fields: Fields, name: str) -> dict[str, str]:
    labels = fields.mapping(name) or {}
    if all(isinstance(value, str) for value in labels.values()):
        return cast("dict[str, str]", labels)
    fields.wrong(name, f"`{name}` maps names to texts; put numbers in quotes.")
    return {}


def _order(top: Fields) -> Order | None:
    if "order" not in top:
        return None
    if top.raw("order") == Order.ROUTED:
        top.wrong("order", "`order` is sequential or graph; playbooks have arcs.")
        return Order.GRAPH
    return top.choice("order", Order.GRAPH)


def _params(top: Fields, findings: Findings) -> dict[str, Any]:
    params = top.mapping("params") or {}
    path = (*top.path, "params")
    for name, value in params.items():
        if not name:
            findings.error(path, PLAN, "A parameter has no name.")
        if any_expression(value):
            findings.warning((*path, name), f"The parameter {name!r} holds {{{{ }}}}; parameters are not filled in.")
    for place, sentence in find_secrets(params, path):
        findings.error(place, STEP, sentence)
    return params


def _param_types(top: Fields, params: dict[str, Any]) -> dict[str, ParamType]:
    types: dict[str, ParamType] = {}
    part = top.part("paramTypes")
    for name in top.mapping("paramTypes") or {} if part is not None else {}:
        assert part is not None
        kind = types[name] = part.choice(name, ParamType.ANY)
        if name in params and params[name] is not None and not fits(params[name], kind):
            part.wrong(name, f"The default of {name!r} is not {in_words(kind)}.")
    return types
