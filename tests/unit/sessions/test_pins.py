"""Which sessions are told to others, and what is made of what others tell."""

from __future__ import annotations

import random

from router_node.dispatch import Ask, Dispatcher, DispatchSettings, NodeSpec, Report, Reservation
from router_node.sessions.pins import Backlog, Pin, PinTable


class Router:
    """A dispatcher with pins, and the nodes that it knows."""

    def __init__(self, *nodes: str, limit: int = 100) -> None:
        self.dispatcher = Dispatcher("w", DispatchSettings(cache_size=64), lambda: 1.0, rng=random.Random(1))
        self.told: list[Pin] = []
        self.pins = PinTable(self.dispatcher, limit, self.told.append)
        self.dispatcher.tell_sessions(self.pins)
        self.sequence = 0
        for node in nodes:
            self.add(node)

    def add(self, node: str, headroom: int = 100_000, boot: str = "b") -> None:
        self.dispatcher.add_node(node, "127.0.0.1:1", NodeSpec("m", kv_capacity_tokens=100_000, boot_id=boot))
        self.dispatcher.set_link(node, True)
        self.dispatcher.on_watch_reset(node)
        self.report(node, headroom, boot)
        self.pins.nodes_changed()

    def report(self, node: str, headroom: int, boot: str = "b") -> None:
        self.sequence += 1
        self.dispatcher.on_report(node, Report(self.sequence, boot, 100_000, headroom, full=True))

    def ask(self, session: bytes, tokens: int = 100) -> str:
        made = self.dispatcher.submit(Ask("m", session=session, prompt_tokens=tokens), _never, _never)
        assert isinstance(made, Reservation)
        made.end()
        return made.node.id


def _never(_: object) -> None:
    raise AssertionError("nothing waits here")


NODES = ("a", "b", "c", "d")


def test_sessions_on_the_ring_are_not_told() -> None:
    one, two = Router(*NODES), Router(*reversed(NODES))
    sessions = [b"s%d" % i for i in range(50)]
    assert [one.ask(s) for s in sessions] == [two.ask(s) for s in sessions]
    assert not one.told and not two.told


def test_a_session_that_load_has_moved_is_told_once_and_found_by_the_other_router() -> None:
    one, two = Router(*NODES), Router(*NODES)
    home = one.ask(b"s")
    one.report(home, 0)
    other = one.ask(b"s")
    assert other != home
    one.report(home, 100_000)
    assert [one.ask(b"s") for _ in range(3)] == [other] * 3
    (pin,) = one.told
    assert (pin.node_id, pin.tokens) == (other, 100)
    two.pins.take(one.told)
    assert [two.ask(b"s") for _ in range(3)] == [other] * 3
    assert not two.told


def test_a_session_that_goes_home_again_is_told_too() -> None:
    one = Router(*NODES)
    home = one.ask(b"s")
    one.report(home, 0)
    other = one.ask(b"s")
    one.report(home, 100_000)
    one.report(other, 0)
    last = one.ask(b"s")
    assert [pin.node_id for pin in one.told] == [other, last]


def test_a_session_that_has_grown_or_is_still_in_use_later_is_told_again() -> None:
    one = Router(*NODES)
    one.report(one.ask(b"s"), 0)
    one.ask(b"s", 100)
    one.ask(b"s", 150)
    one.ask(b"s", 500)
    assert [pin.tokens for pin in one.told] == [100, 500]
    one.pins.renew()
    one.ask(b"s", 500)
    one.ask(b"s", 500)
    assert len(one.told) == 3


def test_a_new_node_takes_over_only_its_share_and_those_who_stay_behind_are_told() -> None:
    one = Router(*NODES)
    sessions = [b"s%d" % i for i in range(60)]
    before = {s: one.ask(s) for s in sessions}
    one.add("e")
    after = {s: one.ask(s) for s in sessions}
    # Their caches are where they were; a few that lie on the new node's part of the ring may be drawn there.
    assert all(after[s] in (before[s], "e") for s in sessions)
    fresh = Router(*NODES, "e")
    ring = {s: fresh.ask(s) for s in sessions}
    moved = [s for s in sessions if ring[s] != before[s]]
    assert 0 < len(moved) < len(sessions) / 2 and all(ring[s] == "e" for s in moved)
    assert [pin.node_id for pin in one.told] == [after[s] for s in sessions if after[s] != ring[s]]
    late = Router(*NODES, "e")
    late.pins.take(one.told)
    assert sum(late.ask(s) == after[s] for s in sessions) >= len(sessions) - 3


def test_pins_of_nodes_not_known_yet_wait_for_them_within_bounds() -> None:
    one = Router(*NODES, limit=3)
    two = Router("a", limit=3)
    home = next(s for s in (b"s%d" % i for i in range(99)) if one.ask(s) == "b")
    one.report("b", 0)
    other = one.ask(home)
    two.pins.take([*one.told, *(Pin(i, "nowhere", 1) for i in range(10))])
    for node in NODES:
        two.add(node)
    assert two.ask(home) == other
    assert len(two.pins) <= 3 and two.pins._waiting_count <= 3


def test_a_backlog_keeps_the_newest_word_and_lets_the_oldest_go() -> None:
    log = Backlog(3)
    for key in (1, 2, 3, 1, 4):
        log.add(Pin(key, f"n{key}", key))
    assert (len(log), log.dropped) == (3, 1)
    taken = log.some(2)
    assert [pin.key for pin in taken] == [3, 1]
    log.add(Pin(1, "newer", 9))
    log.give_back(taken)
    assert {pin.key: pin.node_id for pin in log.some(9)} == {1: "newer", 3: "n3", 4: "n4"}
