"""The loop stays awake between requests that follow closely, and sleeps as soon as they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router_node.relay.account import Account
from router_node.relay.busy_poll import REST, STOLEN, BusyPoll
from tests.support.relay_rig import Rig

WINDOW = 0.0002


class Loop:
    """An event loop's ``call_soon``, a turn at a time, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self, after: float = 0.0) -> None:
        self.now += after
        due, self.due = self.due, []
        for callback in due:
            callback()


def made() -> tuple[Loop, BusyPoll]:
    loop = Loop()
    return loop, BusyPoll(loop, WINDOW, lambda: loop.now)  # type: ignore[arg-type]


def requests(loop: Loop, poll: BusyPoll, count: int, apart: float) -> None:
    for _ in range(count):
        poll.note()
        loop.turn(apart)


def test_it_stays_awake_between_requests_that_follow_closely():
    loop, poll = made()
    requests(loop, poll, 40, WINDOW / 2)
    assert poll.awake
    before = poll.turns
    for _ in range(3):  # nothing comes for a moment
        loop.turn(WINDOW / 10)
    assert poll.awake and len(loop.due) == 1
    assert poll.turns == before + 3


def test_it_sleeps_once_nothing_has_come_for_the_window():
    loop, poll = made()
    requests(loop, poll, 40, WINDOW / 2)
    loop.turn(WINDOW * 1.1)
    assert not poll.awake and not loop.due


def test_a_first_request_or_a_few_wake_nobody():
    loop, poll = made()
    requests(loop, poll, 10, WINDOW / 2)
    assert not poll.awake and not loop.due


@pytest.mark.parametrize("apart", [WINDOW * 1.5, 0.01, 1.0])
def test_requests_far_apart_never_keep_it_awake(apart):
    loop, poll = made()
    requests(loop, poll, 500, apart)
    assert not poll.awake and not loop.due
    assert not poll.turns


def test_it_gives_up_when_most_requests_come_too_late():
    loop, poll = made()
    requests(loop, poll, 200, WINDOW / 2)
    spent = []
    for _ in range(20):
        poll.note()
        loop.turn(WINDOW * 3)
        before = poll.turns
        while loop.due:
            loop.turn(WINDOW / 4)
        spent.append(poll.turns - before)
    assert spent[0] > 0
    assert not any(spent[10:])  # a few waits in vain, then none


def test_what_happens_within_one_turn_counts_once():
    loop, poll = made()
    for _ in range(1000):
        poll.note()
    assert len(loop.due) == 1
    loop.turn(WINDOW / 2)
    assert poll.share < 0.1


def test_it_leaves_the_processor_to_those_who_want_it():
    loop, poll = made()
    requests(loop, poll, 40, WINDOW / 2)
    assert poll.awake
    poll.note()
    loop.turn(3 * STOLEN)  # for one request: somebody else ran meanwhile
    assert not poll.awake
    requests(loop, poll, 40, WINDOW / 2)
    assert not poll.awake and not loop.due
    loop.now += REST
    requests(loop, poll, 40, WINDOW / 2)
    assert poll.awake


def test_a_long_turn_with_many_requests_is_its_own():
    loop, poll = made()
    requests(loop, poll, 60, WINDOW / 2)
    for _ in range(64):
        poll.note()
    loop.turn(20 * STOLEN)
    requests(loop, poll, 20, WINDOW / 2)
    assert poll.awake


async def test_refused_requests_keep_nobody_awake():
    rig = Rig(busy_poll=60.0)
    assert rig.core.busy_poll is not None
    for _ in range(100):
        Account(rig.core, "grpc", "Generate", "127.0.0.1:4", rig.core.clock()).end()
        await asyncio.sleep(0)
    assert not rig.core.busy_poll.awake and not rig.core.busy_poll.share


async def test_requests_are_noted_when_they_begin_and_end_and_never_without_the_setting():
    rig = Rig()
    assert rig.core.busy_poll is None
    rig = Rig(busy_poll=60.0)
    poll = rig.core.busy_poll
    assert poll is not None
    for _ in range(40):  # one event a turn of the loop, all within the minute
        one = Account(rig.core, "grpc", "Generate", "127.0.0.1:4", rig.core.clock())
        one.sent(one.started)
        await asyncio.sleep(0)
        one.end()
        await asyncio.sleep(0)
    assert poll.awake
    before = poll.turns
    for _ in range(5):
        await asyncio.sleep(0)
    assert poll.turns >= before + 4
