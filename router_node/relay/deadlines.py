"""Deadlines of many requests, kept by looking at them all now and then.

Most requests end long before their deadline, so what counts is that having one is nearly free: an entry in a dict,
put in and gone again by ``live.pop(owner, None)``. One timer looks over the whole dict every 20 ms, or as
much less often as keeps that under a hundredth of the time; it rests while there is none. A deadline is met at its
time or a little after, never before.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from typing import Final, Protocol

INTERVAL: Final = 0.02  # seconds between two looks
_SHARE: Final = 100  # a look that takes t seconds is followed by a pause of at least 100 t


class Deadlined(Protocol):
    """What has a deadline."""

    @abstractmethod
    def on_deadline(self) -> None:
        """The time is over. The entry is gone already; must not raise."""


class Deadlines:
    """Who is to be told when. One per event loop.

    ``live`` maps owners to loop times; an entry is put in by ``put`` and taken out by its owner.
    """

    __slots__ = ("_handle", "_loop", "live")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.live: dict[Deadlined, float] = {}
        self._handle: asyncio.TimerHandle | None = None

    def put(self, owner: Deadlined, when: float) -> None:
        """Tell ``owner`` at ``when`` (loop time), and not at what was set before."""
        if not self.live:
            self._arm(INTERVAL)
        self.live[owner] = when

    def close(self) -> None:
        """Forget everything and stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.live.clear()

    def _look(self) -> None:
        self._handle = None
        live = self.live
        if not live:
            return
        began = time.perf_counter()
        now = self._loop.time()
        due = [owner for owner, when in live.items() if when <= now]
        pause = max(INTERVAL, (time.perf_counter() - began) * _SHARE)
        for owner in due:
            # One that is told may end others.
            if live.get(owner, now + 1) <= now:
                del live[owner]
                owner.on_deadline()
        self._arm(pause)

    def _arm(self, pause: float) -> None:
        if self._handle is None:
            self._handle = self._loop.call_later(pause, self._look)
