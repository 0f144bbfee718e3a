"""A process that drives runs under a lease: it reads commands from stdin and prints an answer for each.

lease_owner.py URL NAME TTL known|unknown      whether its lease identifies the process

claim RUN AT       claim the run at that time                       won | RUN_OWNED | ...
due AT             claim the due runs at that time                  the claimed runs, or nothing
append RUN STEP    append with the fence of its lease               appended | STALE_FENCE | ...
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import runwright as rw

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a script

from runwright.log.process_identity import this_process
from support.processes import die_with_parent


class Driver:
    def __init__(self, log: rw.RunLog, lease: rw.Lease) -> None:
        self.log, self.lease = log, lease

    async def claim(self, run_id: str, at: str) -> str:
        wait_until(float(at))
        await self.log.leases.claim_run(run_id, self.lease)
        return "won"

    async def due(self, at: str) -> str:
        wait_until(float(at))
        return " ".join(await self.log.leases.claim_due(self.lease)) or "nothing"

    async def append(self, run_id: str, step_id: str) -> str:
        event = rw.new_event("StepStarted", rw.new_run(run_id, "orders"), step_id=step_id)
        await self.log.append([event], fence=rw.Fence(self.lease.owner, self.lease.epoch))
        return "appended"


def wait_until(moment: float) -> None:
    while time.time() < moment:
        pass


async def main(url: str, name: str, ttl: str, known: str) -> None:
    holder = this_process() if known == "known" else None
    async with rw.open_log(url, write_budget=30) as log:
        lease = await log.leases.acquire(name, float(ttl), holder)
        driver = Driver(log, lease)
        answer(f"{lease.epoch} {lease.expires_at}")
        while order := await asyncio.to_thread(sys.stdin.readline):
            verb, *arguments = order.split()
            try:
                answer(await getattr(driver, verb)(*arguments))
            except rw.RunwrightError as error:
                answer(error.code)


def answer(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(main(*sys.argv[1:]))
