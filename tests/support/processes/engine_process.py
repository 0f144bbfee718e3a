"""Drive one run to its end; the process may be killed at any time."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from runwright.control.bootstrap import open_operations


async def main(store: str, plan_file: str, run_id: str) -> None:
    async with open_operations(store) as operations:
        plan = operations.load(json.loads(Path(plan_file).read_text()))
        await operations.start(plan, run_id=run_id)
        while True:
            await operations.resume(run_id)  # the previous process may still hold its lease
            snapshot = await operations.wait(run_id, 0.5)
            if snapshot.status in ("COMPLETED", "FAILED", "CANCELLED"):
                print(snapshot.status, flush=True)
                return


asyncio.run(main(*sys.argv[1:]))
