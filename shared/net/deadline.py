"""One time limit that moves often and is rarely met, on a timer that seldom moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls ``on_expired`` once the time last set has come.

    Setting a later time only writes a number: the timer finds it when it fires, and goes on to it.
    """

    __slots__ = ("_at", "_handle", "_loop", "_on_expired", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0  # when the timer fires
        self._when: float | None = None  # when it is time

    def set(self, seconds: float) -> None:
        """It is time in so many seconds from now, whatever was set before."""
        when = self._when = self._loop.time() + seconds
        if self._handle is not None:
            if self._at <= when:
                return
            self._handle.cancel()
        self._at = when
        self._handle = self._loop.call_later(seconds, self._fire)

    def stop(self) -> None:
        """There will be no limit any more; lets go of the callback."""
        self._when = None
        self._on_expired = _nothing
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        when = self._when
        if when is None:
            return
        left = when - self._loop.time()
        if left > 0.001:  # event loops round times to a millisecond
            self._at = when
            self._handle = self._loop.call_later(left, self._fire)
            return
        self._when = None
        self._on_expired()


def _nothing() -> None:
    pass
