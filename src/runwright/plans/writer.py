"""Write a plan as readable YAML that loads as the same plan."""

from __future__ import annotations

import re
from typing import Any

import yaml

from runwright.contract.plan import ExecutionPlan, Foreach, OnFailure, Order, Retry, Step, StepClass
from runwright.plans.playbook.writer import playbook_document, without_none
from runwright.plans.yaml.scalars import CORE, FLOAT, INT, KEYWORDS

from .durations import format_duration
from .input_checks import ToolsByKind
from .steps import FIELDS

_SHORT_LINE = 60  # maximum number of characters of a list or mapping on one line
_Base: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


def plan_yaml(plan: ExecutionPlan, tools: ToolsByKind | None = None) -> str:
    """Return the YAML of a plan, without defaults. With `tools`, a main input is written as `KIND: value`."""
    if plan.playbook is not None:
        return _dump(playbook_document(plan))
    document = _header(plan)
    document["steps"] = [_step(step, tools or {}) for step in plan.steps]
    if plan.result is not None:
        document["result"] = plan.result
    return _dump(document)


def _dump(document: dict[str, Any]) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return text


def _header(plan: ExecutionPlan) -> dict[str, Any]:
    meta = plan.metadata
    fields = without_none(
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
        timeout=None if plan.timeout is None else format_duration(plan.timeout),
    )
    return {"plan": meta.plan_id, **fields}


def _order(plan: ExecutionPlan) -> str | None:
    """Return the order, or None if the loader derives the same order without a warning."""
    independent = sum(not step.depends_on for step in plan.steps)
    if independent == len(plan.steps):
        return None if plan.order is Order.SEQUENTIAL else str(plan.order)
    return None if plan.order is Order.GRAPH and independent <= 1 else str(plan.order)


class _Block(dict[str, Any]):
    """A mapping that is written with one line per field, even if it is short."""


def _step(step: Step, kinds: ToolsByKind) -> _Block:
    fields = without_none(
        dependsOn=list(step.depends_on) or None,
        when=step.when,
        foreach=None if step.foreach is None else _foreach(step.foreach),
        **_inputs(step, kinds),
        retry=_retry(step.retry) or None,
        timeout=None if step.timeout is None else format_duration(step.timeout),
        **{"class": None if step.step_class is StepClass.LIGHT else str(step.step_class)},
        cancellable=None if step.cancellable else False,
        needsApproval=True if step.needs_approval else None,
        secretRefs=list(step.secret_refs) or None,
        dispatch=step.dispatch,
        fallback=step.fallback,
    )
    return _Block(id=step.step_id, **fields)


def _inputs(step: Step, kinds: ToolsByKind) -> dict[str, Any]:
    if step.kind in FIELDS:
        return {"kind": step.kind, "with": step.inputs}
    main = kinds[step.kind].main_input if step.kind in kinds else None
    if main is not None and list(step.inputs) == [main]:
        value = step.inputs[main]
        if value is not None and not isinstance(value, dict):
            return {step.kind: value}
    return {step.kind: step.inputs}


def _retry(retry: Retry) -> dict[str, Any]:
    default = Retry()
    return without_none(
        maxAttempts=None if retry.max_attempts == default.max_attempts else retry.max_attempts,
        backoff=None if retry.backoff is default.backoff else str(retry.backoff),
        initial=None if retry.initial == default.initial else format_duration(retry.initial),
        max=None if retry.longest == default.longest else format_duration(retry.longest),
        jitter=None if retry.jitter else False,
    )


def _foreach(foreach: Foreach) -> dict[str, Any]:
    default = Foreach([])
    options = without_none(
        **{"as": None if foreach.item_name == default.item_name else foreach.item_name},
        maxParallel=None if foreach.max_parallel == default.max_parallel else foreach.max_parallel,
    )
    return {"in": foreach.items, **options}


class _Dumper(_Base):
    """Quotes strings that the core schema, or YAML 1.1 (`yes`, dates), would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - repeated values are written out, not aliased
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


def _keywords(*values: bool | None) -> re.Pattern[str]:
    keywords = [re.escape(word) for word, value in KEYWORDS.items() if word and value in values]
    return re.compile(f"(?:{'|'.join(keywords)})\\Z")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(dict, _mapping)
_Dumper.add_representer(_Block, _block)
_Dumper.add_representer(list, _list)
for _name, _pattern, _starts in (
    ("int", re.compile(f"(?:{INT.pattern})\\Z"), "-+0123456789"),
    ("float", re.compile(f"(?:{FLOAT.pattern})\\Z"), "-+.0123456789"),
    ("null", _keywords(None), "~nN"),
    ("bool", _keywords(True, False), "tTfF"),
):
    _Dumper.add_implicit_resolver(CORE + _name, _pattern, list(_starts))
_Dumper.add_implicit_resolver(CORE + "null", re.compile(r"\Z"), [""])
