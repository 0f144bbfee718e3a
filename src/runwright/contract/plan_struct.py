"""Base class of the structs that make up a plan, and their canonical construction."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


class PlanStruct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A part of a plan. Defaults are omitted from the encoding, so that they do not change the content hash."""


def make_canonical(struct: type[S], /, **values: Any) -> S:
    """Create a struct so that equal plans have equal bytes.

    msgspec omits a value only if it *is* the default object, not if it equals the default: an explicit `max` of 60.0
    would be encoded and change the hash. Therefore values that equal the default are not passed to the constructor.
    """
    defaults = _defaults(struct)
    return struct(**{name: value for name, value in values.items() if name not in defaults or defaults[name] != value})


@cache
def _defaults(struct: type[msgspec.Struct]) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        if field.default is not msgspec.NODEFAULT:
            defaults[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            defaults[field.name] = field.default_factory()
    return defaults
