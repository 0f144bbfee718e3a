"""Calls that threads leave for an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from runwright.log.loop_waker import LoopWaker


@pytest.fixture(params=["counter", "socket"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With event counters, and without, as on systems that have none."""
    monkeypatch.setattr("runwright.log.loop_waker._HAS_EVENTFD", request.param == "counter")
    return request.param


def test_every_call_of_every_thread_arrives_in_its_order(way: str) -> None:
    async def main() -> list[tuple[int, int]]:
        heard: list[tuple[int, int]] = []
        bell = LoopWaker(asyncio.get_running_loop())

        def leave(number: int) -> None:
            for call in range(200):
                bell.call_soon(heard.append, (number, call))

        threads = [threading.Thread(target=leave, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(10):
            while len(heard) < 800:  # noqa: ASYNC110 - what tells us is what is tested
                await asyncio.sleep(0.001)
        bell.close()
        return heard

    heard = asyncio.run(main())
    for number in range(4):
        assert [call for who, call in heard if who == number] == list(range(200))


def test_a_call_that_fails_does_not_keep_others_from_being_heard(way: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str]:
        heard: list[str] = []
        bell = LoopWaker(asyncio.get_running_loop())
        bell.call_soon(lambda: 1 / 0)
        bell.call_soon_here(heard.append, "next")
        while not heard:  # noqa: ASYNC110
            await asyncio.sleep(0)
        bell.close()
        return heard

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(main()) == ["next"]
    assert "ZeroDivisionError" in caplog.text


def test_what_was_left_is_heard_at_the_end_and_nothing_afterwards(way: str) -> None:
    async def main() -> list[str]:
        heard: list[str] = []
        bell = LoopWaker(asyncio.get_running_loop())
        bell.call_soon(heard.append, "before")
        bell.close()
        bell.call_soon(heard.append, "after")
        await asyncio.sleep(0.01)
        return heard

    assert asyncio.run(main()) == ["before"]
