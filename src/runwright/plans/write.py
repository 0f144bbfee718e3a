"""A plan as YAML that people can read, and that is read back as the same plan."""

from __future__ import annotations

import re
from typing import Any

import yaml

from runwright.contract.plan import ExecutionPlan, Foreach, OnFailure, Order, Retry, Step, StepClass

from .durations import duration_text
from .kinds import Kinds
from .playbook_write import playbook_document
from .steps import FIELDS
from .yaml_core import CORE, FLOAT, INT, WORDS

_SHORT_LINE = 60  # characters of a list or mapping that stays on one line
_Base: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


def plan_yaml(plan: ExecutionPlan, kinds: Kinds | None = None) -> str:
    """The plan in its short form, defaults left out. With the kinds at hand, an input that can stand alone does."""
    if plan.playbook is not None:
        return _dumped(playbook_document(plan))
    document = _header(plan)
    document["steps"] = [_step(step, kinds or {}) for step in plan.steps]
    if plan.result is not None:
        document["result"] = plan.result
    return _dumped(document)


def _dumped(document: dict[str, Any]) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return text


def _header(plan: ExecutionPlan) -> dict[str, Any]:
    meta = plan.metadata
    fields = _given(
        version=meta.plan_version or None,
        description=meta.description,
        labels=dict(meta.labels) or None,
        requiresCapabilities=list(meta.requires_capabilities) or None,
        fallbackBehavior=meta.fallback_behavior,
        targetAdapter=meta.target_adapter,
        params=dict(plan.params) or None,
        paramTypes={name: str(kind) for name, kind in plan.param_types.items()} or None,
        order=_order(plan),
        onFailure=None if plan.on_failure is OnFailure.FAIL else str(plan.on_failure),
        timeout=None if plan.timeout is None else duration_text(plan.timeout),
    )
    return {"plan": meta.plan_id, **fields}


def _order(plan: ExecutionPlan) -> str | None:
    """The order, where leaving it out would mean another or make the reader ask."""
    free = sum(not step.depends_on for step in plan.steps)
    if free == len(plan.steps):
        return None if plan.order is Order.SEQUENTIAL else str(plan.order)
    return None if plan.order is Order.GRAPH and free <= 1 else str(plan.order)


class _Block(dict[str, Any]):
    """A mapping with a line for each field, however short."""


def _step(step: Step, kinds: Kinds) -> _Block:
    fields = _given(
        dependsOn=list(step.depends_on) or None,
        when=step.when,
        foreach=None if step.foreach is None else _foreach(step.foreach),
        **_inputs(step, kinds),
        retry=_retry(step.retry) or None,
        timeout=None if step.timeout is None else duration_text(step.timeout),
        **{"class": None if step.step_class is StepClass.LIGHT else str(step.step_class)},
        cancellable=None if step.cancellable else False,
        needsApproval=True if step.needs_approval else None,
        secretRefs=list(step.secret_refs) or None,
        dispatch=step.dispatch,
        fallback=step.fallback,
    )
    return _Block(id=step.step_id, **fields)


def _inputs(step: Step, kinds: Kinds) -> dict[str, Any]:
    if step.kind in FIELDS:
        return {"kind": step.kind, "with": step.inputs}
    main = kinds[step.kind].main_input if step.kind in kinds else None
    if main is not None and list(step.inputs) == [main]:
        value = step.inputs[main]
        if value is not None and not isinstance(value, dict):
            return {step.kind: value}
    return {step.kind: step.inputs}


def _retry(retry: Retry) -> dict[str, Any]:
    usual = Retry()
    return _given(
        maxAttempts=None if retry.max_attempts == usual.max_attempts else retry.max_attempts,
        backoff=None if retry.backoff is usual.backoff else str(retry.backoff),
        initial=None if retry.initial == usual.initial else duration_text(retry.initial),
        max=None if retry.longest == usual.longest else duration_text(retry.longest),
        jitter=None if retry.jitter else False,
    )


def _foreach(foreach: Foreach) -> dict[str, Any]:
    usual = Foreach([])
    named = _given(
        **{"as": None if foreach.item_name == usual.item_name else foreach.item_name},
        maxParallel=None if foreach.max_parallel == usual.max_parallel else foreach.max_parallel,
    )
    return {"in": foreach.items, **named}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class _Dumper(_Base):
    """Puts in quotes what the core schema would read as something else, and what YAML 1.1 would: `yes`, dates."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - what is there twice is written twice
        return True


def _text(dumper: Any, value: str) -> yaml.ScalarNode:
    lines = value.split("\n")
    is_block = len(lines) > 1 and all(line.isprintable() and line == line.rstrip() for line in lines)
    return dumper.represent_scalar(CORE + "str", value, style="|" if is_block else None)


def _mapping(dumper: Any, value: dict[str, Any]) -> yaml.MappingNode:
    return dumper.represent_mapping(CORE + "map", value, flow_style=_is_short(list(value.values()), value))


def _block(dumper: Any, value: dict[str, Any]) -> yaml.MappingNode:
    return dumper.represent_mapping(CORE + "map", value, flow_style=False)


def _list(dumper: Any, value: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence(CORE + "seq", value, flow_style=_is_short(value, value))


def _is_short(items: list[Any], whole: Any) -> bool:
    if any(isinstance(item, dict | list) for item in items) or "\n" in "".join(map(str, items)):
        return False
    return len(str(whole)) <= _SHORT_LINE


def _words(*meanings: bool | None) -> re.Pattern[str]:
    words = [re.escape(word) for word, meaning in WORDS.items() if word and meaning in meanings]
    return re.compile(f"(?:{'|'.join(words)})\\Z")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(dict, _mapping)
_Dumper.add_representer(_Block, _block)
_Dumper.add_representer(list, _list)
for _name, _pattern, _starts in (
    ("int", re.compile(f"(?:{INT.pattern})\\Z"), "-+0123456789"),
    ("float", re.compile(f"(?:{FLOAT.pattern})\\Z"), "-+.0123456789"),
    ("null", _words(None), "~nN"),
    ("bool", _words(True, False), "tTfF"),
):
    _Dumper.add_implicit_resolver(CORE + _name, _pattern, list(_starts))
_Dumper.add_implicit_resolver(CORE + "null", re.compile(r"\Z"), [""])
