"""Calls that threads schedule on an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from runwright.log.notifier import LoopWaker


@pytest.fixture(params=["counter", "socket"])
def mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with eventfd and without, as on systems that do not have it."""
    monkeypatch.setattr("runwright.log.notifier._HAS_EVENTFD", request.param == "counter")
    return request.param


def test_calls_of_each_thread_arrive_in_order(mechanism: str) -> None:
    async def main() -> list[tuple[int, int]]:
        received: list[tuple[int, int]] = []
        waker = LoopWaker(asyncio.get_running_loop())

        def schedule(number: int) -> None:
            for call in range(200):
                waker.call_soon(received.append, (number, call))

        threads = [threading.Thread(target=schedule, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(10):
            while len(received) < 800:  # noqa: ASYNC110 - an asyncio.Event would depend on the waker under test
                await asyncio.sleep(0.001)
        waker.close()
        return received

    received = asyncio.run(main())
    for number in range(4):
        assert [call for thread_number, call in received if thread_number == number] == list(range(200))


def test_a_failing_call_does_not_block_later_calls(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str]:
        received: list[str] = []
        waker = LoopWaker(asyncio.get_running_loop())
        waker.call_soon(lambda: 1 / 0)
        waker.call_soon_here(received.append, "next")
        while not received:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waker.close()
        return received

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(main()) == ["next"]
    assert "ZeroDivisionError" in caplog.text


def test_close_runs_pending_calls_and_ignores_later_ones(mechanism: str) -> None:
    async def main() -> list[str]:
        received: list[str] = []
        waker = LoopWaker(asyncio.get_running_loop())
        waker.call_soon(received.append, "before")
        waker.close()
        waker.call_soon(received.append, "after")
        await asyncio.sleep(0.01)
        return received

    assert asyncio.run(main()) == ["before"]
