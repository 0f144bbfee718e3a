"""Idempotent start requests: the same request is the same run, at every server of a store."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.side_tables import SideTables

MAX_BYTES = 2000
"""Of all six ids: the limit of an index entry."""

Request = tuple[str, ...]
"""tenantId, projectId, environmentId, planId, planVersion, runRequestId"""


def request_key(request: Request) -> str:
    """A hash over the six ids."""
    return sha256("|".join(request).encode()).hexdigest()


async def run_of_request(side_tables: SideTables, request: Request, run_id: str | None) -> str:
    """The run id of a request: that of its first arrival, or one derived from the request."""
    for part in request:
        if not 0 < len(part) <= 512 or "|" in part or "\0" in part:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, "Ids of a request must have 1 to 512 characters, without | and NUL."
            )
    if len("".join(request).encode()) > MAX_BYTES:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"The ids of a request must have at most {MAX_BYTES} bytes together."
        )
    wanted = run_id or str(UUID(hex=request_key(request)[:32], version=4))
    await side_tables.write("insert_request", *request, wanted)
    found = await side_tables.read("find_request", *request)
    return found[0][0]
