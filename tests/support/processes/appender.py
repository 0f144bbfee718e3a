"""Append events of several runs, and print what the log acknowledged: run, seq, event id, key.

    appender.py endless URL                     until it is killed
    appender.py some URL LENGTH PREFIX RUN...    events 1 to LENGTH of each run, then it ends
    appender.py reopen URL TIMES NAME            one event each time, in a log opened for it alone
    appender.py make FOLDER TIMES NAME START     likewise, each in a new file; processes with one START create it at once

The next event of a run follows from its last number in the log. A process that is started after a kill
continues a few events before the end, and appends the events that were in progress again, with the same keys.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path

import runwright as rw

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a script

from support.processes import die_with_parent

FULL_LENGTH = 701
STEP_BACK = 7
SLOTS = ((0,), (1,), (2,), (3,), (4, 5), (6, 7, 8))  # the runs of a task, which share its appends


def nth(run: rw.RunIdentity, n: int, prefix: str = "") -> rw.RunEventWrite:
    """The nth event of a run."""
    if n == 1:
        return rw.new_event("RunQueued", run)
    if n == 2:
        return rw.new_event("RunStarted", run)
    if n == FULL_LENGTH:
        return rw.new_event("RunCompleted", run)
    step, end = divmod(n - 3, 2)
    if end:
        return rw.new_event("StepCompleted", run, step_id=f"{prefix}step-{step}", payload={"result": {"n": n}})
    return rw.new_event("StepStarted", run, step_id=f"{prefix}step-{step}")


async def append(log: rw.RunLog, events: list[rw.RunEventWrite]) -> None:
    receipts = await log.append(events)
    lines = [
        f"{event.run_id} {receipt.run_seq} {receipt.event_id} {event.idempotency_key}\n"
        for event, receipt in zip(events, receipts, strict=True)
    ]
    os.write(1, "".join(lines).encode())  # unbuffered, in one write


async def advance(log: rw.RunLog, runs: list[rw.RunIdentity], done: int, length: int, prefix: str = "") -> None:
    """Append events done + 1 to length of all these runs, in batches of uneven size."""
    while done < length:
        upto = min(done + 1 + done % 4, length)
        await append(log, [nth(run, n, prefix) for run in runs for n in range(done + 1, upto + 1)])
        done = upto


async def last_seq(log: rw.RunLog, run_id: str) -> int:
    try:
        return (await log.find_run(run_id)).last_seq
    except rw.RunwrightError as error:
        if error.code != "RUN_NOT_FOUND":
            raise
        return 0


async def drive(log: rw.RunLog, slot: tuple[int, ...]) -> None:
    """Append one run after another; a slot with several numbers appends to several runs together."""
    for number in itertools.count(1):
        runs = [rw.new_run(f"run-{lane}-{number}", "orders") for lane in slot]
        reached = min([await last_seq(log, run.run_id) for run in runs])
        if reached < FULL_LENGTH:
            await advance(log, runs, max(0, reached - STEP_BACK), FULL_LENGTH)


async def endless(url: str) -> None:
    async with rw.open_log(url, write_budget=30) as log:
        await asyncio.gather(*(drive(log, slot) for slot in SLOTS))


async def some(url: str, length: str, prefix: str, *run_ids: str) -> None:
    async with rw.open_log(url, write_budget=30) as log:
        runs = [rw.new_run(run_id, "orders") for run_id in run_ids]
        await asyncio.gather(*(advance(log, [run], 0, int(length), prefix) for run in runs))


async def reopen(url: str, times: str, name: str) -> None:
    for number in range(int(times)):
        async with rw.open_log(url, write_budget=30) as log:
            await append(log, [nth(rw.new_run(f"{name}-{number}", "orders"), 1)])


async def make(folder: str, times: str, name: str, start: str) -> None:
    for number in range(int(times)):
        while time.time() < float(start) + number * 0.04:
            pass
        await reopen(f"sqlite:///{folder}/{number}.db", "1", name)


if __name__ == "__main__":
    die_with_parent()
    mode, *arguments = sys.argv[1:]
    asyncio.run({"endless": endless, "some": some, "reopen": reopen, "make": make}[mode](*arguments))
