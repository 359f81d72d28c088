"""Deadlines are met in time, dropped for free, and cost nothing while there are none."""

from __future__ import annotations

import asyncio

from router_node.relay.deadlines import Deadlines


class Owner:
    def __init__(self) -> None:
        self.told: list[float] = []
        self.event = asyncio.Event()

    def on_deadline(self) -> None:
        self.told.append(asyncio.get_running_loop().time())
        self.event.set()


def put(deadlines: Deadlines, owner: Owner, seconds: float) -> float:
    when = asyncio.get_running_loop().time() + seconds
    deadlines.put(owner, when)
    return when


async def test_a_deadline_is_met_after_its_time():
    deadlines, owner = Deadlines(asyncio.get_running_loop()), Owner()
    when = put(deadlines, owner, 0.03)
    await asyncio.wait_for(owner.event.wait(), 5)
    assert owner.told[0] >= when
    assert len(owner.told) == 1
    assert not deadlines.live


async def test_a_dropped_deadline_is_never_told_and_order_does_not_matter():
    deadlines = Deadlines(asyncio.get_running_loop())
    late, dropped, early = Owner(), Owner(), Owner()
    put(deadlines, late, 0.15)
    put(deadlines, dropped, 0.03)
    put(deadlines, early, 0.01)
    deadlines.live.pop(dropped, None)
    await asyncio.wait_for(early.event.wait(), 5)
    assert not late.told
    await asyncio.wait_for(late.event.wait(), 5)
    assert not dropped.told


async def test_one_that_is_told_may_drop_others_and_add_new_ones():
    deadlines = Deadlines(asyncio.get_running_loop())
    victim, second = Owner(), Owner()

    class First(Owner):
        def on_deadline(self) -> None:
            super().on_deadline()
            deadlines.live.pop(victim, None)
            put(deadlines, second, 0.01)

    put(deadlines, First(), 0.01)
    put(deadlines, victim, 0.01)
    await asyncio.wait_for(second.event.wait(), 5)
    assert not victim.told


async def test_the_timer_rests_while_there_is_nothing_and_starts_again():
    deadlines, owner = Deadlines(asyncio.get_running_loop()), Owner()
    put(deadlines, owner, 60)
    deadlines.live.clear()
    deadline = asyncio.get_running_loop().time() + 5
    while deadlines._handle is not None:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)
    put(deadlines, owner, 0.01)
    await asyncio.wait_for(owner.event.wait(), 5)
    deadlines.close()
    assert deadlines._handle is None
