"""Functions of the example plans: a small shop whose API is sometimes unavailable."""

from __future__ import annotations

import random
import time
from typing import Any

import runwright as rw


def extract(day: str) -> dict[str, Any]:
    """Fetch the orders of a day. The first attempt fails with 503."""
    step = rw.current_step()
    print(f"asking the shop for the orders of {day}")
    time.sleep(0.6)
    if step.attempt == 1:
        raise rw.StepError("HTTP_503", "the shop's API answered 503 Service Unavailable")
    dice = random.Random(day)  # The same day always has the same orders.
    orders = [{"id": number, "cents": dice.randrange(500, 20_000)} for number in range(1, 41)]
    print(f"{len(orders)} orders")
    return {"day": day, "orders": orders}


def load(table: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Insert rows into a table in batches."""
    for done in range(0, len(rows), 10):
        time.sleep(0.25)
        print(f"{table}: {min(done + 10, len(rows))} of {len(rows)} rows")
    return {"table": table, "rows": len(rows)}


def check(table: str) -> str:
    time.sleep(random.uniform(0.2, 0.6))
    print(f"{table} is complete")
    return table


def report(day: str, orders: list[dict[str, Any]]) -> dict[str, Any]:
    total = sum(order["cents"] for order in orders) / 100
    print(f"{day}: {len(orders)} orders, {total:,.2f} in all")
    return {"orders": len(orders), "total": total}
