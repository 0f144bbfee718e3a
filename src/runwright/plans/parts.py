"""Making the parts of a plan so that equal plans have equal bytes.

msgspec leaves out of the bytes what *is* the default, not what equals it: a `max` of 60.0 that somebody wrote
would be kept, and change the hash. So what equals the default is not even passed on.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

P = TypeVar("P", bound=msgspec.Struct)


def make_part(part: type[P], /, **values: Any) -> P:
    usual = _defaults(part)
    return part(**{name: value for name, value in values.items() if name not in usual or usual[name] != value})


@cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            defaults[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            defaults[field.name] = field.default_factory()
    return defaults
