"""A limit that moves on a timer that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.net.deadline import Deadline
from tests.support.h2_rig import ManualLoop, Timer


class Watch:
    """A deadline and the times at which it expired."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.loop = ManualLoop()
        self.start = self.loop.now
        self.expired: list[float] = []
        self.then = then
        self.deadline = Deadline(self.loop, self.expire)  # type: ignore[arg-type]

    def expire(self) -> None:
        self.expired.append(round(self.loop.now - self.start, 6))
        self.then()


def test_it_expires_once_at_the_time_that_was_set_last():
    watch = Watch()
    watch.deadline.set(2)
    watch.loop.advance(1)
    watch.deadline.set(8)
    watch.loop.advance(100)
    assert watch.expired == [9]


def test_an_earlier_time_moves_the_timer():
    watch = Watch()
    watch.deadline.set(60)
    watch.deadline.set(2)
    watch.loop.advance(100)
    assert watch.expired == [2]


def test_it_can_be_set_again_as_it_expires_and_stopped_for_good():
    watch = Watch(lambda: watch.deadline.set(5) if len(watch.expired) < 3 else None)
    watch.deadline.set(5)
    watch.loop.advance(100)
    assert watch.expired == [5, 10, 15]
    watch.deadline.set(5)
    watch.deadline.stop()
    watch.loop.advance(100)
    assert len(watch.expired) == 3


def test_a_time_that_moves_with_every_request_costs_no_timer_each():
    watch = Watch()
    made: list[float] = []
    call_later = watch.loop.call_later

    def counted(delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        made.append(delay)
        return call_later(delay, callback, *args)

    watch.loop.call_later = counted  # type: ignore[method-assign]
    for _ in range(1000):
        watch.deadline.set(300)
        watch.loop.advance(0.1)
    assert len(made) == 1
    watch.loop.advance(300)
    assert len(watch.expired) == 1
