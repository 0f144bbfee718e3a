"""Upcast old payloads to the newest version when they are read.

An upcast is a pure function from the payload of one version to that of the next. Stored payloads never change; readers
always get the newest version of a type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .catalog import schema_version_of
from .refs import parse_engine_run_ref

Upcast = Callable[[dict[str, Any]], dict[str, Any]]


def run_started_upcast_v1_v2(payload: dict[str, Any]) -> dict[str, Any]:
    """Add `engineRun`, the parts of the text `engineRunRef`, so that a run can be found by them."""
    ref = payload.get("engineRunRef")
    if "engineRun" in payload or not isinstance(ref, str):
        return payload
    engine_run = parse_engine_run_ref(ref)
    if engine_run is None:
        return payload
    return {**payload, "engineRun": msgspec.to_builtins(engine_run)}


_UPCASTS: dict[tuple[str, int], Upcast] = {("RunStarted", 1): run_started_upcast_v1_v2}


def upcast(event_type: str, version: int, payload: dict[str, Any]) -> dict[str, Any]:
    """Return the payload in the newest version of its type."""
    for current in range(version, schema_version_of(event_type)):
        payload = _UPCASTS[event_type, current](payload)
    return payload
