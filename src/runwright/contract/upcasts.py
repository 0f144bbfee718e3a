"""Old payloads, brought to the newest shape on read.

An upcast is pure, takes the payload of one version and gives that of the next. What is stored never
changes; what readers see is always the newest version of its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .catalog import schema_version_of
from .refs import parse_engine_run_ref

Upcast = Callable[[dict[str, Any]], dict[str, Any]]


def run_started_upcast_v1_v2(payload: dict[str, Any]) -> dict[str, Any]:
    """v1 named the engine's run as one text; v2 has its parts as well, so that it can be looked up."""
    ref = payload.get("engineRunRef")
    if "engineRun" in payload or not isinstance(ref, str):
        return payload
    engine_run = parse_engine_run_ref(ref)
    if engine_run is None:
        return payload
    return {**payload, "engineRun": msgspec.to_builtins(engine_run)}


_UPCASTS: dict[tuple[str, int], Upcast] = {("RunStarted", 1): run_started_upcast_v1_v2}


def upcast(event_type: str, version: int, payload: dict[str, Any]) -> dict[str, Any]:
    """The payload in the newest version of its type."""
    for step in range(version, schema_version_of(event_type)):
        payload = _UPCASTS[event_type, step](payload)
    return payload
