"""Requests whose bodies are still arriving over HTTP/2, and the longest pause each may make."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Uploader(Protocol):
    """A request that waits for more of its body."""

    def stalled(self) -> None:
        """Nothing has come for too long; it is forgotten already."""
        ...


class Uploads:
    """One timer for all of them: they share one limit, so the one that was silent longest is always the first."""

    __slots__ = ("_due", "_handle", "_loop", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._loop = loop
        self._timeout = timeout
        self._due: dict[Uploader, float] = {}
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def progress(self, owner: Uploader) -> None:
        """The request has begun, or more of its body has come."""
        due = self._due
        due.pop(owner, None)
        due[owner] = self._loop.time() + self._timeout
        if self._handle is None:
            self._handle = self._loop.call_later(self._timeout, self._fire)

    def end(self, owner: Uploader) -> None:
        """The body is whole, or nobody wants it any more."""
        self._due.pop(owner, None)

    def close(self) -> None:
        """Forget all of them."""
        self._due.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        now = self._loop.time()
        while self._due:
            owner, when = next(iter(self._due.items()))
            if when - now > 0.001:  # event loops round times to a millisecond
                self._handle = self._loop.call_later(when - now, self._fire)
                return
            del self._due[owner]
            owner.stalled()
