"""Cache of the plans that this process has loaded, by content hash, with their file and code fingerprints."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from runwright.contract.plan import ExecutionPlan, content_hash, plan_body

SUB_PLAN = "plan"
"""Kind of a step that runs another plan."""

MAX_PLANS = 1024
_SCHEME = "plan:sha256:"


class RegisteredPlan(msgspec.Struct, frozen=True):
    plan: ExecutionPlan
    file: str | None = None
    code: dict[str, str] | None = None
    """For a plan written in Python: its step functions and the fingerprints of their code."""


_plans: OrderedDict[str, RegisteredPlan] = OrderedDict()


def register_plan(plan: ExecutionPlan, file: str | None = None, code: dict[str, str] | None = None) -> str:
    """Register a plan of this process; return the reference by which other plans name it."""
    ref = make_plan_ref(plan)
    sha256 = hash_from_ref(ref)
    _plans[sha256] = RegisteredPlan(plan, file, code)
    _plans.move_to_end(sha256)
    if len(_plans) > MAX_PLANS:
        _plans.popitem(last=False)
    return ref


def find_registered(sha256: str) -> RegisteredPlan | None:
    return _plans.get(sha256)


def make_plan_ref(plan: ExecutionPlan) -> str:
    return f"{_SCHEME}{content_hash(plan_body(plan))}"


def hash_from_ref(ref: str) -> str:
    return ref.removeprefix(_SCHEME)
