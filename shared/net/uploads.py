"""Request bodies that are held: how long each may pause while it arrives, and how much all may take together.

A connection and its streams take in bodies up to a limit each; many of them, sent slowly, would still fill the memory.
So there is one account of all. When it is overdrawn, those that are still arriving and hold most have to go: a small
request never does. A body that is whole stays in the account for as long as its owner ``keep``s it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from shared.errors import Code, LayaError
from shared.net.api import Headers

SMALL_BODY: Final = 64 << 10  # bytes up to which a whole body is always kept
_FEW: Final = 64  # bodies


class Uploader(Protocol):
    """A request that waits for more of its body."""

    def stalled(self) -> None:
        """Nothing has come for too long; it is forgotten already."""
        ...

    def crowded_out(self) -> None:
        """It holds the most while all hold too much; it is forgotten already, and must let go of its bytes."""
        ...


# May a request with this method, target and these headers send a large body? An error when it may not.
Gate = Callable[[bytes, bytes, Headers], LayaError | None]


class Uploads:
    """One timer for all of them: they share one limit, so the one that was silent longest is always the first.

    ``timeout`` is in seconds; ``limit`` in bytes, at least the largest body there can be.
    """

    __slots__ = ("_handle", "_limit", "_loop", "_timeout", "_waiting", "gate", "held", "kept")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, limit: int) -> None:
        self._loop = loop
        self._timeout = timeout
        self._limit = limit
        self._waiting: dict[Uploader, tuple[float, int]] = {}  # when each is due, and what it holds
        self._handle: asyncio.TimerHandle | None = None
        self.held = 0  # bytes of all, arriving or kept
        self.kept = 0  # of these, bytes that are whole
        self.gate: Gate | None = None  # asked before the first byte of a large body is taken

    def __len__(self) -> int:
        return len(self._waiting)

    def refusal(self, method: bytes, target: bytes, headers: Headers, length: int | None) -> LayaError | None:
        """Why a request may not send its body, whose length is None where it is not known. Small ones always may."""
        if self.gate is None or (length is not None and length <= SMALL_BODY):
            return None
        return self.gate(method, target, headers)

    def progress(self, owner: Uploader, held: int) -> None:
        """The request waits for more of its body, and holds so many bytes of it. It may be crowded out in this call."""
        waiting = self._waiting
        before = waiting.pop(owner, None)
        waiting[owner] = (self._loop.time() + self._timeout, held)
        self.held += held - (before[1] if before is not None else 0)
        if self._handle is None:
            self._handle = self._loop.call_later(self._timeout, self._fire)
        if self.held > self._limit:
            self._crowd_out()

    def end(self, owner: Uploader) -> None:
        """The body is whole, or nobody wants it any more."""
        was = self._waiting.pop(owner, None)
        if was is not None:
            self.held -= was[1]

    def keep(self, size: int) -> bool:
        """Count a whole body of so many bytes, until ``let_go``. False where there is no room: it is not counted."""
        if self.held + size > self._limit and size > SMALL_BODY:
            return False
        self.held += size
        self.kept += size
        return True

    def let_go(self, size: int) -> None:
        """A body that was kept is not needed any more."""
        self.held -= size
        self.kept -= size

    def close(self) -> None:
        """Forget all that are arriving."""
        self._waiting.clear()
        self.held = self.kept
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _crowd_out(self) -> None:
        """The largest go. Where there are many, until an eighth is to spare: looking at all of them takes its time."""
        goal = self._limit if len(self._waiting) <= _FEW else self._limit - (self._limit >> 3)
        for owner, (_, held) in sorted(self._waiting.items(), key=lambda item: item[1][1], reverse=True):
            if self.held <= goal or not held:
                return
            if owner in self._waiting:  # one that goes may end others
                self.end(owner)
                owner.crowded_out()

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
