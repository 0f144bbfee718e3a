"""Idempotent start requests: the same request is the same run, at every server of a store."""

from __future__ import annotations

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.side_tables import SideTables

MAX_BYTES = 2000
"""Of all six ids: the limit of an index entry."""

Request = tuple[str, ...]
"""tenantId, projectId, environmentId, planId, planVersion, runRequestId"""


async def run_of_request(side_tables: SideTables, request: Request, run_id: str) -> str:
    """The run id of a request: `run_id`, unless the request has arrived before. Not derived from the request: another
    caller could take a derived id first."""
    for part in request:
        if not 0 < len(part) <= 512 or "|" in part or "\0" in part:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, "Ids of a request must have 1 to 512 characters, without | and NUL."
            )
    if len("".join(request).encode()) > MAX_BYTES:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"The ids of a request must have at most {MAX_BYTES} bytes together."
        )
    await side_tables.write("insert_request", *request, run_id)
    found = await side_tables.read("find_request", *request)
    return found[0][0]
