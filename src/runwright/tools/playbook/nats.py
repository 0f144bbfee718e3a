"""The `nats` task of playbooks: messages, key-value buckets, object stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.storage.nats_connection import connect
from runwright.tools.base import Lane, StepContext, StepError, invalid_input, is_unresolved

OPERATIONS: dict[str, tuple[str, ...]] = {
    "publish": ("subject",),
    "request": ("subject",),
    "kv_get": ("bucket", "key"),
    "kv_put": ("bucket", "key", "value"),
    "kv_delete": ("bucket", "key"),
    "kv_keys": ("bucket",),
    "object_get": ("bucket", "key"),
    "object_put": ("bucket", "key", "value"),
    "object_delete": ("bucket", "key"),
    "object_list": ("bucket",),
}
"""Operations and their required inputs."""


class PlaybookNatsInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    operation: str
    url: str | None = None
    bucket: str | None = None
    key: str | None = None
    value: Any = None
    subject: str | None = None
    wait: float = 10.0
    """Timeout of a request, in seconds."""


class PlaybookNatsTool:
    kind = "noetl.nats"
    inputs = PlaybookNatsInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        operation = inputs.get("operation")
        if find_spec("nats") is None:
            return "NATS tasks require `runwright[nats]`. Install it."
        if inputs.get("url") is None:
            return "Set `auth` (the name of a secret with the server URL) or `url`."
        if is_unresolved(operation):
            return None
        if operation not in OPERATIONS:
            return f"`operation` must be one of {', '.join(OPERATIONS)}."
        missing = [name for name in OPERATIONS[operation] if name not in inputs]
        return f"`{operation}` requires `{missing[0]}`." if missing else None

    def lane(self, inputs: PlaybookNatsInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: PlaybookNatsInputs, context: StepContext) -> Any:  # noqa: ARG002
        step = Step(step_id="x", kind=self.kind)
        if (problem := self.check(msgspec.to_builtins(_set_inputs(inputs)), step)) is not None:
            raise invalid_input(problem)
        async with _connected(inputs.url or "") as client:
            if inputs.operation == "publish":
                await client.publish(inputs.subject, _encode(inputs.value))
                await client.flush()
                return {"subject": inputs.subject}
            if inputs.operation == "request":
                response = await client.request(inputs.subject, _encode(inputs.value), timeout=inputs.wait)
                return {"data": _decode(response.data)}
            family, _, verb = inputs.operation.partition("_")
            call = _call_key_value if family == "kv" else _call_object_store
            return await call(client.jetstream(), verb, inputs)


def _set_inputs(inputs: PlaybookNatsInputs) -> dict[str, Any]:
    return {name: value for name in inputs.__struct_fields__ if (value := getattr(inputs, name)) is not None}


async def _call_key_value(jetstream: Any, verb: str, inputs: PlaybookNatsInputs) -> Any:
    from nats.js.errors import BucketNotFoundError, NoKeysError

    try:
        bucket = await jetstream.key_value(inputs.bucket)
    except BucketNotFoundError:
        if verb != "put":
            raise
        bucket = await jetstream.create_key_value(bucket=inputs.bucket)
    if verb == "put":
        return {"key": inputs.key, "revision": await bucket.put(inputs.key, _encode(inputs.value))}
    if verb == "delete":
        return {"key": inputs.key, "deleted": bool(await bucket.delete(inputs.key))}
    if verb == "keys":
        try:
            return {"keys": sorted(await bucket.keys())}
        except NoKeysError:
            return {"keys": []}
    entry = await bucket.get(inputs.key)
    return {"key": inputs.key, "value": _decode(entry.value), "revision": entry.revision}


async def _call_object_store(jetstream: Any, verb: str, inputs: PlaybookNatsInputs) -> Any:
    from nats.js.errors import BucketNotFoundError, NotFoundError

    try:
        bucket = await jetstream.object_store(inputs.bucket)
    except BucketNotFoundError:
        if verb != "put":
            raise
        bucket = await jetstream.create_object_store(inputs.bucket)
    if verb == "put":
        info = await bucket.put(inputs.key, _encode(inputs.value))
        return {"key": inputs.key, "size_bytes": info.size}
    if verb == "delete":
        await bucket.delete(inputs.key)
        return {"key": inputs.key, "deleted": True}
    if verb == "list":
        try:
            found = await bucket.list(ignore_deletes=True)
        except NotFoundError:
            return {"objects": []}
        return {"objects": [{"key": info.name, "size_bytes": info.size} for info in found if not info.deleted]}
    found = await bucket.get(inputs.key)
    return {"key": inputs.key, "value": _decode(found.data or b"")}


@asynccontextmanager
async def _connected(url: str) -> AsyncGenerator[Any]:
    """Connect, and raise errors of the client as StepError."""
    from nats.errors import Error, NoRespondersError
    from nats.js.errors import NotFoundError

    client: Any = None
    try:
        client = await connect(url, allow_reconnect=False)
        yield client
    except NotFoundError as error:
        message = str(error).strip() or "Bucket or key not found."
        raise StepError("NATS_NOT_FOUND", message, retryable=False, category="nats", kind="nats") from None
    except NoRespondersError:
        message = "No responders on this subject."
        raise StepError("NATS_NO_RESPONDERS", message, category="nats", kind="nats") from None
    except (Error, TimeoutError, OSError) as error:
        reason = str(error).strip() or type(error).__name__
        raise StepError("NATS_FAILED", f"NATS: {reason}", category="nats", kind="nats") from None
    finally:
        if client is not None:
            await client.close()


def _encode(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _decode(body: bytes) -> Any:
    """Decode JSON, or return other text unchanged."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        message = "The value is neither JSON nor text."
        raise StepError("RESULT_NOT_STORABLE", message, retryable=False, category="nats") from None
