"""Ends connections that have lived long enough, so that clients spread again over routers that came later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from shared.net.counters import NetCounters
from shared.net.sniff import Served

_JITTER: Final = 0.1  # connections made at once do not all leave at once


class Ages:
    """One timer a connection. Past its age (give or take a tenth) it is told to leave; after a grace it is closed."""

    __slots__ = ("_age", "_counters", "_grace", "_loop", "_timers")

    def __init__(self, loop: asyncio.AbstractEventLoop, counters: NetCounters, age: float, grace: float) -> None:
        """``age`` and ``grace`` in seconds; an age of 0 lets connections live for ever."""
        self._loop = loop
        self._counters = counters
        self._age = age
        self._grace = grace
        self._timers: dict[Served, asyncio.TimerHandle] = {}

    def add(self, conn: Served, leave: Callable[[], None]) -> None:
        """A new connection; ``leave`` has it finish what runs and take nothing new."""
        if self._age:
            age = self._age * random.uniform(1 - _JITTER, 1 + _JITTER)
            self._timers[conn] = self._loop.call_later(age, self._old, conn, leave)

    def discard(self, conn: Served) -> None:
        """The connection is gone."""
        timer = self._timers.pop(conn, None)
        if timer is not None:
            timer.cancel()

    def _old(self, conn: Served, leave: Callable[[], None]) -> None:
        self._counters.count("max_age")
        self._timers[conn] = self._loop.call_later(self._grace, self._overdue, conn)
        leave()

    def _overdue(self, conn: Served) -> None:
        del self._timers[conn]
        self._counters.count("max_age_grace")
        conn.close()
