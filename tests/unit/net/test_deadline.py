"""A limit that moves on a timer that does not."""

from __future__ import annotations

import asyncio

from shared.net.deadline import Deadline
from tests.support.web import until


async def test_it_fires_once_at_the_time_that_was_set_last():
    loop = asyncio.get_running_loop()
    fired: list[float] = []
    deadline = Deadline(loop, lambda: fired.append(loop.time()))
    begin = loop.time()
    deadline.set(0.02)
    deadline.set(0.08)
    await until(lambda: fired)
    assert fired[0] - begin >= 0.078
    await asyncio.sleep(0.1)
    assert len(fired) == 1


async def test_an_earlier_time_moves_the_timer():
    loop = asyncio.get_running_loop()
    fired: list[float] = []
    deadline = Deadline(loop, lambda: fired.append(loop.time()))
    begin = loop.time()
    deadline.set(60)
    deadline.set(0.02)
    await until(lambda: fired)
    assert fired[0] - begin < 2


async def test_it_can_be_set_again_when_it_fires_and_stopped_for_good():
    loop = asyncio.get_running_loop()
    fired: list[int] = []

    def again() -> None:
        fired.append(1)
        if len(fired) < 3:
            deadline.set(0.005)

    deadline = Deadline(loop, again)
    deadline.set(0.005)
    await until(lambda: len(fired) == 3)
    deadline.set(0.005)
    deadline.stop()
    await asyncio.sleep(0.03)
    assert len(fired) == 3
