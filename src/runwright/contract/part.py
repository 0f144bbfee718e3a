"""The base of everything that a plan is made of."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A part of a plan; what is left at its default is not written, so that it does not change the hash."""
