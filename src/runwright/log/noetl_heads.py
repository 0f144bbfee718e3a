"""Lines of a stream of NoETL's, before any of them is read: whose they are, in which order, and of which playbooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from runwright.contract.noetl_read import plan_of


class Head(msgspec.Struct, frozen=True):
    """Of one line, as far as it says."""

    run_id: str | None = None
    seq: int | None = None
    names_plan: bool = False


class _Fields(msgspec.Struct):
    execution_id: Any = None
    event_type: Any = None
    seq: Any = None


_decoder = msgspec.json.Decoder(_Fields)


def head_of(line: bytes) -> Head:
    try:
        found = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Head()
    is_named = isinstance(found.execution_id, str | int) and not isinstance(found.execution_id, bool)
    is_counted = isinstance(found.seq, int) and not isinstance(found.seq, bool)
    return Head(
        str(found.execution_id) if is_named else None,
        found.seq if is_counted else None,
        isinstance(found.event_type, str) and found.event_type.startswith("playbook."),
    )


def in_sequence(heads: Sequence[Head]) -> list[int]:
    """The places of lines in the order in which they are taken: those of a run that are counted, as they are."""
    counted: dict[str, list[tuple[int, int]]] = {}
    for place, head in enumerate(heads):
        if head.run_id is not None and head.seq is not None:
            counted.setdefault(head.run_id, []).append((head.seq, place))
    order = list(range(len(heads)))
    for lines in counted.values():
        for (_, place), (_, taken) in zip(lines, sorted(lines), strict=True):
            order[place] = taken
    return order


def plans_in(lines: Sequence[bytes], heads: Sequence[Head]) -> dict[str, tuple[str, str | None]]:
    """The playbook of each run that one of these names, rather with its version than without."""
    plans: dict[str, tuple[str, str | None]] = {}
    for line, head in zip(lines, heads, strict=True):
        if head.run_id is None or not head.names_plan or plans.get(head.run_id, ("", None))[1] is not None:
            continue
        try:
            plan = plan_of(msgspec.json.decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue  # it is refused when its turn comes
        if plan is not None and (head.run_id not in plans or plan[1] is not None):
            plans[head.run_id] = plan
    return plans
