"""Deadlines are met in time, dropped for free, and never keep more than their grid allows."""

from __future__ import annotations

import asyncio
import time

from router_node.relay.deadlines import HORIZON, Deadlines


class Owner:
    def __init__(self) -> None:
        self.told: list[float] = []
        self.event = asyncio.Event()

    def on_deadline(self) -> None:
        self.told.append(time.monotonic())
        self.event.set()


async def test_a_deadline_is_met_after_its_time_and_within_two_ticks():
    loop = asyncio.get_running_loop()
    deadlines, owner = Deadlines(loop), Owner()
    start = time.monotonic()
    deadlines.add(0.03, owner)
    await asyncio.wait_for(owner.event.wait(), 5)
    assert 0.03 <= owner.told[0] - start < 0.5
    assert deadlines.count == 0


async def test_a_dropped_deadline_is_never_told_and_an_earlier_one_overtakes():
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    late, dropped, early = Owner(), Owner(), Owner()
    deadlines.add(0.2, late)
    due = deadlines.add(0.05, dropped)
    deadlines.add(0.02, early)
    deadlines.drop(due, dropped)
    deadlines.drop(due, dropped)
    assert deadlines.count == 2
    await asyncio.wait_for(early.event.wait(), 5)
    assert not late.told
    await asyncio.wait_for(late.event.wait(), 5)
    assert not dropped.told
    assert deadlines.count == 0


async def test_an_owner_may_drop_and_add_others_when_told():
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    second = Owner()

    class First(Owner):
        def on_deadline(self) -> None:
            super().on_deadline()
            deadlines.add(0.01, second)

    first = First()
    deadlines.add(0.01, first)
    await asyncio.wait_for(second.event.wait(), 5)
    assert first.told[0] <= second.told[0]


async def test_far_deadlines_share_few_sets():
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    assert deadlines.add(HORIZON + 1, Owner()) == 0
    for i in range(20_000):
        due = deadlines.add(60.0 + i * 30.0, owner := Owner())
        deadlines.drop(due, owner)
    assert deadlines.count == 0
    assert len(deadlines._ticks) < 14_000
    deadlines.close()
    assert not deadlines._ticks
