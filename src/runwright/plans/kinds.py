"""What a plan needs to know of a tool. `tools.base.Tool` is one of these; this layer lies below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from runwright.contract.plan import Step


class Kind(Protocol):
    @property
    def inputs(self) -> type[msgspec.Struct]: ...

    @property
    def main_input(self) -> str | None: ...

    def check(self, inputs: dict[str, Any], step: Step) -> str | None: ...


Kinds = Mapping[str, Kind]
