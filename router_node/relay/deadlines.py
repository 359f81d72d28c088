"""Deadlines of many requests on one timer.

Most requests end long before their deadline, so what counts is that setting and dropping one is cheap: a request joins
the set of its tick and leaves it again. A deadline is met at its time or a little after, never before: 10 ms within a
minute, a second within an hour, a minute beyond. The grid bounds how many sets there can be, whatever clients ask.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from heapq import heappop, heappush
from typing import Final, Protocol

_SECOND: Final = 100  # ticks
_MINUTE: Final = 60 * _SECOND
HORIZON: Final = 7 * 86_400.0  # seconds; a deadline beyond is never enforced here


class Deadlined(Protocol):
    """What has a deadline."""

    @abstractmethod
    def on_deadline(self) -> None:
        """The time is over. The entry is gone already; must not raise."""


class Deadlines:
    """Who is to be told when. One per event loop."""

    __slots__ = ("_armed", "_handle", "_heap", "_loop", "_ticks", "count")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ticks: dict[int, set[Deadlined]] = {}
        self._heap: list[int] = []
        self._handle: asyncio.TimerHandle | None = None
        self._armed = 0
        self.count = 0

    def add(self, seconds: float, owner: Deadlined) -> int:
        """Have ``owner`` told after ``seconds``; the tick returned is for ``drop``. 0: too far away to matter."""
        due = int((self._loop.time() + seconds) * _SECOND) + 2
        if seconds > 60.0:
            if seconds > HORIZON:
                return 0
            grid = _SECOND if seconds <= 3600.0 else _MINUTE
            due += grid - due % grid
        owners = self._ticks.get(due)
        if owners is None:
            self._ticks[due] = owners = set()
            heappush(self._heap, due)
            if self._handle is None or due < self._armed:
                self._arm(due)
        owners.add(owner)
        self.count += 1
        return due

    def drop(self, due: int, owner: Deadlined) -> None:
        """Forget a deadline; one that has passed or was dropped already is no error."""
        owners = self._ticks.get(due)
        if owners is not None and owner in owners:
            owners.remove(owner)
            self.count -= 1

    def close(self) -> None:
        """Forget everything and stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._ticks.clear()
        self._heap.clear()
        self.count = 0

    def _arm(self, due: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = due
        self._handle = self._loop.call_at(due / _SECOND, self._fire)

    def _fire(self) -> None:
        self._handle = None
        heap, ticks = self._heap, self._ticks
        now = int(self._loop.time() * _SECOND)
        while heap and heap[0] <= now:
            owners = ticks.pop(heappop(heap))
            self.count -= len(owners)
            for owner in owners:
                owner.on_deadline()
        # Sets that emptied in the meantime need no wake-up of their own.
        while heap and not ticks[heap[0]]:
            del ticks[heappop(heap)]
        if heap:
            self._arm(heap[0])
