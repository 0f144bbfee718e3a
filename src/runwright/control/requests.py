"""Requests to start a run: the same request again is the same run, however often it is sent and wherever to."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.desk import Desk

LONGEST = 2000
"""Bytes that the index over the six takes."""

Request = tuple[str, ...]
"""tenantId, projectId, environmentId, planId, planVersion, runRequestId"""


def request_key(request: Request) -> str:
    """One name for the six of them."""
    return sha256("|".join(request).encode()).hexdigest()


async def run_of_request(desk: Desk, request: Request, run_id: str | None) -> str:
    """The id of the run that answers a request: the one that was given first, else one that follows from it."""
    for part in request:
        if not 0 < len(part) <= 512 or "|" in part or "\0" in part:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, "Ids in a request have 1 to 512 characters, and no | and no NUL."
            )
    if len("".join(request).encode()) > LONGEST:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"The ids of a request have {LONGEST} bytes at most, together."
        )
    wanted = run_id or str(UUID(hex=request_key(request)[:32], version=4))
    await desk.write("put_request", *request, wanted)
    found = await desk.read("find_request", *request)
    return found[0][0]
