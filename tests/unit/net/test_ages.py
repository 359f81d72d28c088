"""Connections leave when they are old, and are closed when they do not."""

from __future__ import annotations

from typing import Any, cast

from shared.net.ages import Ages
from shared.net.counters import NetCounters
from tests.support.h2_rig import ManualLoop


class Conn:
    """Notes what it is told."""

    streams = 1

    def __init__(self) -> None:
        self.told: list[str] = []

    def go_away(self) -> None:
        self.told.append("leave")

    def close(self) -> None:
        self.told.append("close")


class Rig:
    def __init__(self, age: float = 100.0, grace: float = 50.0) -> None:
        self.loop = ManualLoop()
        self.counters = NetCounters()
        self.ages = Ages(cast(Any, self.loop), self.counters, age, grace)

    def add(self) -> Conn:
        conn = Conn()
        self.ages.add(conn, conn.go_away)
        return conn


def test_an_old_connection_is_told_to_leave_and_closed_after_its_grace():
    rig = Rig()
    conn = rig.add()
    rig.loop.advance(89.0)
    assert conn.told == []
    rig.loop.advance(22.0)
    assert conn.told == ["leave"]
    rig.loop.advance(28.0)
    assert conn.told == ["leave"]
    rig.loop.advance(22.0)
    assert conn.told == ["leave", "close"]
    rig.ages.discard(conn)
    assert rig.counters.reasons == {"max_age": 1, "max_age_grace": 1}


def test_a_connection_that_is_gone_is_left_alone():
    rig = Rig()
    early, late = rig.add(), rig.add()
    rig.ages.discard(early)
    rig.loop.advance(111.0)
    rig.ages.discard(late)
    rig.ages.discard(late)
    rig.loop.advance(1000.0)
    assert (early.told, late.told) == ([], ["leave"])


def test_connections_of_one_moment_do_not_all_leave_at_once():
    rig = Rig(grace=1e6)
    conns = [rig.add() for _ in range(200)]
    rig.loop.advance(100.0)
    gone = sum(bool(conn.told) for conn in conns)
    assert 40 < gone < 160
    rig.loop.advance(11.0)
    assert all(conn.told == ["leave"] for conn in conns)


def test_without_an_age_connections_live_for_ever():
    rig = Rig(age=0.0)
    conn = rig.add()
    rig.loop.advance(1e9)
    assert conn.told == []
