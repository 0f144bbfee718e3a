"""The `artifact` task of playbooks: stores a file or a value as an artifact, or loads one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.tools.base import Lane, StepContext, invalid_input


class PlaybookArtifactInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    action: str = "get"
    path: str | None = None
    data: Any = None
    type: str = "file"
    ref: dict[str, Any] | str | None = None


class PlaybookArtifactTool:
    kind = "noetl.artifact"
    inputs = PlaybookArtifactInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        if inputs.get("action") == "put":
            count = ("path" in inputs) + ("data" in inputs)
            return None if count == 1 else "`put` requires exactly one of `path` (a file) and `data` (a value)."
        return None if "ref" in inputs else "`get` requires `ref`, the result of a `put`."

    def lane(self, inputs: PlaybookArtifactInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.THREAD

    def run(self, inputs: PlaybookArtifactInputs, context: StepContext) -> Any:
        path = None if inputs.path is None else Path(context.path(inputs.path))
        if inputs.action == "put":
            source = path if path is not None else msgspec.json.encode(inputs.data)
            return context.keep(source, inputs.type)
        assert inputs.ref is not None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if _is_result(inputs.ref) and context.resolve is not None:
            value = context.resolve(inputs.ref)
            if path is None:
                return value
            return {"path": inputs.path, "size_bytes": path.write_bytes(msgspec.json.encode(value))}
        if path is not None:
            return {"path": inputs.path, "size_bytes": context.fetch(inputs.ref, path)}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "artifact"
            context.fetch(inputs.ref, file)
            try:
                return msgspec.json.decode(file.read_bytes())
            except (msgspec.DecodeError, UnicodeError):
                raise invalid_input("The artifact is not JSON: set `path`, a file to write it to.") from None


def _is_result(ref: dict[str, Any] | str) -> bool:
    """Whether a reference is that of a task's result, not of an artifact."""
    address = ref.get("ref") if isinstance(ref, dict) else ref
    return isinstance(address, str) and address.startswith("noetl://")
