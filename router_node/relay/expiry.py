"""Keeps the dispatcher's clock: its waiting requests are looked at when one may have waited too long."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Expiring(Protocol):
    """What is to be called in time: a dispatcher."""

    def expire(self, now: float) -> float | None:
        """Do what is due; the loop time of the next call, or None when nothing is pending."""
        ...


class Expiry:
    """One timer. Hand ``wake`` to the dispatcher, then ``bind`` the dispatcher; both use the loop's own clock."""

    __slots__ = ("_at", "_handle", "_loop", "_target")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._target: Expiring | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def bind(self, target: Expiring) -> None:
        """Say whose ``expire`` is to be called."""
        self._target = target

    def wake(self, at: float) -> None:
        """Call ``expire`` at loop time ``at`` or earlier."""
        if self._handle is not None:
            if self._at <= at:
                return
            self._handle.cancel()
        self._at = at
        self._handle = self._loop.call_at(at, self._fire)

    def close(self) -> None:
        """Stop; later wakes do nothing."""
        self._target = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        if self._target is not None:
            following = self._target.expire(self._loop.time())
            if following is not None:
                self.wake(following)
