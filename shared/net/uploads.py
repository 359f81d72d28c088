"""Request bodies that are still arriving: the longest pause of each, and how much they may hold together.

A connection and its streams take in bodies up to a limit each; many of them, sent slowly, would still fill the memory.
So there is one account of all. When it is overdrawn, whoever holds most has to go: a small request never does.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from shared.errors import Code, LayaError


class Uploader(Protocol):
    """A request that waits for more of its body."""

    def stalled(self) -> None:
        """Nothing has come for too long; it is forgotten already."""
        ...

    def crowded_out(self) -> None:
        """It holds the most while all hold too much; it is forgotten already, and must let go of its bytes."""
        ...


class Uploads:
    """One timer for all of them: they share one limit, so the one that was silent longest is always the first.

    ``timeout`` is in seconds; ``limit`` in bytes, at least the largest body there can be.
    """

    __slots__ = ("_handle", "_limit", "_loop", "_timeout", "_waiting", "held")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, limit: int) -> None:
        self._loop = loop
        self._timeout = timeout
        self._limit = limit
        self._waiting: dict[Uploader, tuple[float, int]] = {}  # when each is due, and what it holds
        self._handle: asyncio.TimerHandle | None = None
        self.held = 0  # bytes that all of them hold

    def __len__(self) -> int:
        return len(self._waiting)

    def progress(self, owner: Uploader, held: int) -> None:
        """The request waits for more of its body, and holds so many bytes of it. It may be crowded out in this call."""
        waiting = self._waiting
        before = waiting.pop(owner, None)
        waiting[owner] = (self._loop.time() + self._timeout, held)
        self.held += held - (before[1] if before is not None else 0)
        if self._handle is None:
            self._handle = self._loop.call_later(self._timeout, self._fire)
        while self.held > self._limit:
            largest = max(waiting, key=lambda each: waiting[each][1])
            self.end(largest)
            largest.crowded_out()

    def end(self, owner: Uploader) -> None:
        """The body is whole, or nobody wants it any more."""
        was = self._waiting.pop(owner, None)
        if was is not None:
            self.held -= was[1]

    def close(self) -> None:
        """Forget all of them."""
        self._waiting.clear()
        self.held = 0
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        now = self._loop.time()
        while self._waiting:
            owner, (due, _) = next(iter(self._waiting.items()))
            if due - now > 0.001:  # event loops round times to a millisecond
                self._handle = self._loop.call_later(due - now, self._fire)
                return
            self.end(owner)
            owner.stalled()


def upload_limit(max_body: int) -> int:
    """Bytes that arriving bodies may hold together, by the largest body there may be: room for eight of those."""
    return 8 * max_body


def stalled_error() -> LayaError:
    """What the client of a body that stalled is told."""
    text = "The request's body did not go on in time: pauses in it are limited."
    return LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", text, http_status=408)


def late_head_error(seconds: float) -> LayaError:
    """What the client of a request whose headers did not come in time is told."""
    text = f"The request's headers did not arrive in time: they may take {seconds:g} s."
    return LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", text, http_status=408)


def crowded_error() -> LayaError:
    """What the client of a body that was crowded out is told."""
    text = "The server is taking in as much as it can hold: send the request again, and all of it at once."
    return LayaError(Code.RESOURCE_EXHAUSTED, "UPLOADS_FULL", text, retry_after=1.0, http_status=503)
