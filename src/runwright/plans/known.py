"""The plans that this process has read, by their hash: what they are, and where they came from."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from runwright.contract.plan import ExecutionPlan, content_hash, plan_body

SUB_PLAN = "plan"
"""The kind of step that is a run of another plan."""

_SCHEME = "plan:sha256:"


class Known(msgspec.Struct, frozen=True):
    plan: ExecutionPlan
    file: str | None = None
    code: dict[str, str] | None = None
    """The functions that are steps of a plan in Python, with the fingerprint of their code."""


MOST = 1024

_known: OrderedDict[str, Known] = OrderedDict()


def remember(plan: ExecutionPlan, file: str | None = None, code: dict[str, str] | None = None) -> str:
    """Keep a plan of this process's own in mind; gives back the reference by which others name it."""
    ref = ref_of(plan)
    sha256 = hash_in(ref)
    _known[sha256] = Known(plan, file, code)
    _known.move_to_end(sha256)
    if len(_known) > MOST:
        _known.popitem(last=False)
    return ref


def known(sha256: str) -> Known | None:
    return _known.get(sha256)


def ref_of(plan: ExecutionPlan) -> str:
    return f"{_SCHEME}{content_hash(plan_body(plan))}"


def hash_in(ref: str) -> str:
    return ref.removeprefix(_SCHEME)
