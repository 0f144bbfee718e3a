"""The `nats` of playbooks: messages, keys and values, objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.results.nats_line import connect

from .base import Lane, StepContext, StepError, is_open

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
"""What can be asked for, and what each needs."""


class PlaybookNatsInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    operation: str
    url: str | None = None
    bucket: str | None = None
    key: str | None = None
    value: Any = None
    subject: str | None = None
    wait: float = 10.0
    """Seconds for the answer to a request."""


class PlaybookNatsTool:
    kind = "noetl.nats"
    inputs = PlaybookNatsInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        operation = inputs.get("operation")
        if find_spec("nats") is None:
            return "NATS needs `runwright[nats]`. Install it."
        if inputs.get("url") is None:
            return "Say which server: `auth`, the name of a secret with its address, or `url`."
        if is_open(operation):
            return None
        if operation not in OPERATIONS:
            return f"`operation` is one of {', '.join(OPERATIONS)}."
        missing = [name for name in OPERATIONS[operation] if name not in inputs]
        return f"`{operation}` needs `{missing[0]}`." if missing else None

    def lane(self, inputs: PlaybookNatsInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: PlaybookNatsInputs, context: StepContext) -> Any:  # noqa: ARG002
        if (trouble := self.check(msgspec.to_builtins(_given(inputs)), Step(step_id="x", kind=self.kind))) is not None:
            raise StepError("INVALID_INPUT", trouble, retryable=False)
        async with _connected(inputs.url or "") as client:
            if inputs.operation == "publish":
                await client.publish(inputs.subject, _bytes(inputs.value))
                await client.flush()
                return {"subject": inputs.subject}
            if inputs.operation == "request":
                answer = await client.request(inputs.subject, _bytes(inputs.value), timeout=inputs.wait)
                return {"data": _value(answer.data)}
            family, _, verb = inputs.operation.partition("_")
            ask = _ask_values if family == "kv" else _ask_objects
            return await ask(client.jetstream(), verb, inputs)


def _given(inputs: PlaybookNatsInputs) -> dict[str, Any]:
    return {name: value for name in inputs.__struct_fields__ if (value := getattr(inputs, name)) is not None}


async def _ask_values(jetstream: Any, verb: str, inputs: PlaybookNatsInputs) -> Any:
    from nats.js.errors import BucketNotFoundError, NoKeysError

    try:
        bucket = await jetstream.key_value(inputs.bucket)
    except BucketNotFoundError:
        if verb != "put":
            raise
        bucket = await jetstream.create_key_value(bucket=inputs.bucket)
    if verb == "put":
        return {"key": inputs.key, "revision": await bucket.put(inputs.key, _bytes(inputs.value))}
    if verb == "delete":
        return {"key": inputs.key, "deleted": bool(await bucket.delete(inputs.key))}
    if verb == "keys":
        try:
            return {"keys": sorted(await bucket.keys())}
        except NoKeysError:
            return {"keys": []}
    entry = await bucket.get(inputs.key)
    return {"key": inputs.key, "value": _value(entry.value), "revision": entry.revision}


async def _ask_objects(jetstream: Any, verb: str, inputs: PlaybookNatsInputs) -> Any:
    from nats.js.errors import BucketNotFoundError, NotFoundError

    try:
        bucket = await jetstream.object_store(inputs.bucket)
    except BucketNotFoundError:
        if verb != "put":
            raise
        bucket = await jetstream.create_object_store(inputs.bucket)
    if verb == "put":
        info = await bucket.put(inputs.key, _bytes(inputs.value))
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
    return {"key": inputs.key, "value": _value(found.data or b"")}


@asynccontextmanager
async def _connected(url: str) -> AsyncGenerator[Any]:
    """A connection, and what goes wrong on it as the error of a step."""
    from nats.errors import Error, NoRespondersError
    from nats.js.errors import NotFoundError

    client: Any = None
    try:
        client = await connect(url, allow_reconnect=False)
        yield client
    except NotFoundError as error:
        what = str(error).strip() or "There is no such bucket or key."
        raise StepError("NATS_NOT_FOUND", what, retryable=False, category="nats", kind="nats") from None
    except NoRespondersError:
        message = "Nobody answers on this subject."
        raise StepError("NATS_NO_RESPONDERS", message, category="nats", kind="nats") from None
    except (Error, TimeoutError, OSError) as error:
        why = str(error).strip() or type(error).__name__
        raise StepError("NATS_FAILED", f"NATS: {why}", category="nats", kind="nats") from None
    finally:
        if client is not None:
            await client.close()


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _value(body: bytes) -> Any:
    """JSON as what it says, other text as text."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        message = "The value is neither JSON nor text."
        raise StepError("RESULT_NOT_STORABLE", message, retryable=False, category="nats") from None
