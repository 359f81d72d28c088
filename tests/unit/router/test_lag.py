"""A loop that was blocked shows it, and so does a process that stood still."""

from __future__ import annotations

import time

import pytest

from router_node.admin import lag
from router_node.admin.lag import AFTERMATH, STILL, LoopLag
from tests.support.ports import until


async def test_a_blocked_loop_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_EVERY", 0.01)
    probe = LoopLag()
    probe.start()
    try:
        await until(lambda: probe.worst > 0, "a first look")
        time.sleep(0.2)  # noqa: ASYNC251 - blocking the loop is the point
        await until(lambda: probe.worst > 0.15, "the delay is seen")
    finally:
        await probe.close()


async def test_a_delay_is_forgotten_after_two_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_EVERY", 0.01)
    monkeypatch.setattr(lag, "_WINDOW", 0.1)
    probe = LoopLag()
    probe.start()
    try:
        await until(lambda: probe.worst > 0, "a first look")
        time.sleep(0.3)  # noqa: ASYNC251 - blocking the loop is the point
        await until(lambda: probe.worst > 0.2, "the delay is seen")
        await until(lambda: probe.worst < 0.2, "the delay is forgotten")
    finally:
        await probe.close()


class Clock:
    """A clock that stands until it is set, and counts who looks at it."""

    now = 100.0
    looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now

    async def turn(self) -> None:
        """Let the task that watches it wake, and go to sleep again."""
        before = self.looks
        await until(lambda: self.looks >= before + 4, "two turns")


async def test_a_process_that_stood_still_knows_it_at_once_and_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_EVERY", 0.01)
    clock = Clock()
    probe = LoopLag(clock)
    assert not probe.stood_still(), "nobody watches yet"
    probe.start()
    try:
        await clock.turn()
        clock.now += STILL
        assert not probe.stood_still(), "a loop may be busy"
        await clock.turn()
        assert not probe.stood_still()
        clock.now += 5.0
        assert probe.stood_still(), "before anything else has had its turn"
        await clock.turn()
        assert probe.stood_still(), "what came of it may only show now"
        assert probe.worst > 4.9
        for _ in range(4):
            clock.now += AFTERMATH / 4
            await clock.turn()
        assert not probe.stood_still()
    finally:
        await probe.close()
    clock.now += 60.0
    assert not probe.stood_still(), "nobody watches any more"
