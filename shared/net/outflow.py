"""Which queued bytes have left: what a connection knows of its streams' back-pressure.

The engine says how much of a stream it still has, and nothing when that changes. So streams that were given bytes are
asked after the next flush; those whose bytes wait for the peer's window are asked again when the window opens. A flush
never loops over all stalled streams, or a peer could make each of its reads cost as much as it has streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.net.engine import EngineEvents

if TYPE_CHECKING:
    from shared.net.engine import Engine
    from shared.net.stream import StreamBase

_FEW = 32  # stalled streams that may be looked at on every flush


class Outflow(EngineEvents):
    """The sending half's books; base of H2Connection."""

    __slots__ = ("_squeezed_total", "engine", "paused", "squeezed", "stalled", "waiting")

    engine: Engine

    def __init__(self) -> None:
        self.paused = False  # the transport is full
        self.waiting: list[StreamBase] = []  # streams some of whose bytes may have left at the next flush
        self.stalled: dict[int, StreamBase] = {}  # streams whose bytes wait for the peer's window
        self.squeezed = False  # the peer's connection window is used up
        self._squeezed_total = 0

    def report_sent(self, more: bool) -> None:
        """After a ``take``: tell owners how many of their bytes have left for the transport.

        ``more``: the engine has not given all that it may send, so what it still has need not wait for the peer.
        """
        waiting = self.waiting
        self.waiting = []
        queued = self.engine.queued
        total = queued()
        if self.squeezed and self._worth_a_look(total):
            waiting.extend(self.stalled.values())
            self.stalled.clear()
            self.squeezed = False
        if not total:
            for stream in waiting:
                n = stream.queued
                if n:
                    stream.queued = 0
                    try:
                        stream.report_sent(n)
                    except Exception as error:
                        self.on_fault(stream.id, error)
            return
        stalled = False
        for stream in waiting:
            before = stream.queued
            if not before:
                continue
            left = queued(stream.id)
            stream.queued = left
            if left:
                if more or self.paused:
                    self.waiting.append(stream)
                else:
                    self.stalled[stream.id] = stream
                    stalled = True
            if before > left:
                try:
                    stream.report_sent(before - left)
                except Exception as error:
                    self.on_fault(stream.id, error)
        if stalled and not self.squeezed and self.engine.peer_window(0) <= 0:
            self.squeezed = True
            self._squeezed_total = total

    def unstall(self, stream_id: int) -> None:
        """The peer opened a stream's window."""
        stream = self.stalled.pop(stream_id, None)
        if stream is not None:
            self.waiting.append(stream)

    def unstall_all(self) -> None:
        """The peer may have opened all windows."""
        self.waiting.extend(self.stalled.values())
        self.stalled.clear()
        self.squeezed = False

    def forget_all(self) -> None:
        """Nothing leaves any more."""
        self.waiting = []
        self.stalled = {}
        self.squeezed = False

    def _worth_a_look(self, total: int) -> bool:
        """Whether to ask every stalled stream, now that the connection's own window was used up.

        A peer may open that window byte by byte; a thousand questions for each would be too many. What has left is
        noticed when the window stays open (all that could leave has left), or at each halving, or if they are few.
        """
        return len(self.stalled) <= _FEW or total <= self._squeezed_total >> 1 or self.engine.peer_window(0) > 0
