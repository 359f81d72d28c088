"""One flush per batch and connection, the one that was read from last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from shared.net.flusher import Flusher
from tests.support.h2_rig import ManualLoop


class Conn:
    """Notes its flushes in a list that all share."""

    def __init__(self, name: str, order: list[str], then: Callable[[], None] | None = None) -> None:
        self.touched = False
        self.name = name
        self.order = order
        self.then = then

    def flush(self) -> None:
        self.touched = False
        self.order.append(self.name)
        if self.then is not None:
            self.then()


def make() -> tuple[ManualLoop, Flusher]:
    loop = ManualLoop()
    return loop, Flusher(cast(Any, loop))


def test_touches_outside_a_batch_are_flushed_together_at_the_next_turn():
    loop, flusher = make()
    order: list[str] = []
    a, b = Conn("a", order), Conn("b", order)
    flusher.touch(a)
    flusher.touch(b)
    assert order == []
    loop.run()
    assert order == ["a", "b"]
    loop.run()
    assert order == ["a", "b"]


def test_a_batch_flushes_the_touched_ones_and_its_own_last():
    loop, flusher = make()
    order: list[str] = []
    own, a, b = Conn("own", order), Conn("a", order), Conn("b", order)
    assert flusher.enter()
    flusher.touch(own)
    flusher.touch(a)
    flusher.touch(b)
    flusher.leave(own)
    assert order == ["a", "b", "own"]
    loop.run()
    assert order == ["a", "b", "own"]


def test_the_own_connection_is_flushed_even_if_untouched():
    _, flusher = make()
    order: list[str] = []
    assert flusher.enter()
    flusher.leave(Conn("own", order))
    assert order == ["own"]


def test_a_batch_inside_a_batch_leaves_the_flushing_to_the_outer_one():
    _, flusher = make()
    order: list[str] = []
    assert flusher.enter()
    assert not flusher.enter()
    flusher.touch(Conn("a", order))
    assert order == []
    flusher.leave()
    assert order == ["a"]
    assert flusher.enter()
    flusher.leave()


def test_what_a_flush_touches_is_flushed_in_the_same_batch():
    _, flusher = make()
    order: list[str] = []
    late = Conn("late", order)
    early = Conn("early", order, lambda: None if late.touched or "late" in order else flusher.touch(late))
    own = Conn("own", order)
    assert flusher.enter()
    flusher.touch(early)
    flusher.leave(own)
    assert order == ["early", "late", "own"]


def test_a_connection_touched_by_the_last_flush_is_flushed_again():
    _, flusher = make()
    order: list[str] = []
    other = Conn("other", order)
    own = Conn("own", order, lambda: flusher.touch(other))
    assert flusher.enter()
    flusher.leave(own)
    assert order == ["own", "other"]


def test_connections_that_touch_each_other_forever_leave_the_loop_to_others():
    loop, flusher = make()
    order: list[str] = []
    ping = Conn("ping", order)
    pong = Conn("pong", order, lambda: flusher.touch(ping) if len(order) < 500 else None)
    ping.then = lambda: flusher.touch(pong) if len(order) < 500 else None
    own = Conn("own", order)
    assert flusher.enter()
    flusher.touch(ping)
    flusher.leave(own)
    assert len(order) < 100
    assert "own" not in order  # it still waits for its turn
    loop.run()
    assert "own" in order
    assert len(order) >= 500


def test_the_counters_are_those_handed_in():
    from shared.net.counters import NetCounters

    counters = NetCounters()
    assert Flusher(counters=counters).counters is counters
    counters.count("x")
    counters.count("x")
    assert counters.reasons == {"x": 2}


def test_deferred_batches_are_flushed_together_at_the_next_turn_but_their_own_connections_at_once():
    loop, flusher = make()
    order: list[str] = []
    node = Conn("node", order)
    for name in ("a", "b"):
        assert flusher.enter()
        if not node.touched:
            flusher.touch(node)
        flusher.defer(Conn(name, order))
    assert order == ["a", "b"]
    loop.run()
    assert order == ["a", "b", "node"]
    loop.run()
    assert order == ["a", "b", "node"]


def test_few_batches_are_deferred_before_all_is_flushed():
    loop, flusher = make()
    order: list[str] = []
    node = Conn("node", order)
    flushed_after = []
    for i in range(40):
        assert flusher.enter()
        if not node.touched:
            flusher.touch(node)
        flusher.defer(Conn("own", order))
        if order.count("node") > len(flushed_after):
            flushed_after.append(i + 1)
    assert flushed_after == [16, 32]
    loop.run()
    assert order.count("node") == 3


def test_another_batch_flushes_what_was_deferred_before_it():
    loop, flusher = make()
    order: list[str] = []
    assert flusher.enter()
    flusher.touch(Conn("node", order))
    flusher.defer(Conn("a", order))
    assert flusher.enter()
    flusher.leave(Conn("b", order))
    assert order == ["a", "node", "b"]
    loop.run()
    assert order == ["a", "node", "b"]


def test_a_batch_that_touched_nothing_defers_nothing():
    loop, flusher = make()
    order: list[str] = []
    assert flusher.enter()
    flusher.defer(Conn("a", order))
    loop.run()
    assert order == ["a"]
    assert flusher.enter()
    flusher.leave()
