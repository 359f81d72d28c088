"""Sends what connections have to say once per batch of events.

A batch is everything that one read from one socket causes. Its events are handled first, whichever connections they
touch; then every touched connection is flushed, the one that was read from last. So a stream that is opened and reset
in one packet never reaches a node, a response and its trailers leave in one write, and acknowledgements ride along.
A touch outside a batch (a timer, a task) is flushed by one ``call_soon``.

Clients that speak HTTP/1.1 bring one request a read, each on a connection of its own. Their batches are not flushed
one by one: what a few of them have to say to a node leaves together, at the end of the event loop's turn at the latest.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from shared.net.counters import NetCounters

# A flush may lead to more sends (an owner that answers ``on_sent`` with more data). After this many rounds the rest
# waits for the next turn of the event loop, so that one fast reader cannot starve the others.
_ROUNDS = 32


_FEW = 16  # batches that may wait for one another


class Flushable(Protocol):
    """What the flusher asks of a connection."""

    touched: bool  # true while the connection is in the flusher's list; the flusher sets it, ``flush`` clears it

    def flush(self) -> None:
        """Write what there is to write; never raises."""
        ...


class Flusher:
    """The touched connections of a process; build one, and hand it to every connection."""

    __slots__ = ("_batch", "_handle", "_loop", "_todo", "_waiting", "counters")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, counters: NetCounters | None = None) -> None:
        self.counters = counters if counters is not None else NetCounters()
        self._loop = loop
        self._todo: list[Flushable] = []
        self._batch = False
        self._waiting = 0  # batches closed by ``defer``
        self._handle: asyncio.Handle | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, taken when first needed: a flusher may be built before the loop runs."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def touch(self, conn: Flushable) -> None:
        """Have the connection flushed at the end of this batch; callers test ``conn.touched`` first."""
        conn.touched = True
        self._todo.append(conn)
        if not self._batch and self._handle is None:
            self._handle = self.loop.call_soon(self._run)

    def enter(self) -> bool:
        """Open a batch. False inside another one, which will do the flushing: then do not ``leave``."""
        if self._batch:
            return False
        self._batch = True
        return True

    def leave(self, last: Flushable | None = None) -> None:
        """Flush everything that was touched, then ``last`` (even if untouched), and close the batch."""
        rounds = _ROUNDS
        self._waiting = 0
        try:
            while rounds:
                todo = self._todo
                if todo:
                    self._todo = []
                    for conn in todo:
                        if conn is not last:
                            conn.flush()
                    rounds -= 1
                elif last is not None:
                    own, last = last, None
                    own.flush()
                else:
                    return
            if last is not None:
                last.touched = True
                self._todo.append(last)
        finally:
            self._batch = False
            if self._todo and self._handle is None:
                self._handle = self.loop.call_soon(self._run)

    def defer(self, last: Flushable) -> None:
        """Close a batch as ``leave`` does, but let others join it before it is flushed. Not for ``last``: it is now."""
        self._waiting += 1
        if self._waiting >= _FEW or not self._todo:
            self.leave(last)
            return
        last.flush()
        self._batch = False
        if self._handle is None:
            self._handle = self.loop.call_soon(self._run)

    def _run(self) -> None:
        self._handle = None
        if self.enter():
            self.leave()
