"""What a connection on ``h2`` has yet to say: nothing is framed before there is room for it.

``h2`` frames whatever it is given at once. Held here until the transport asks, a request that is cancelled in the same
batch never leaves, and bytes count as queued until they go. Header blocks leave in the order in which they were
given; bodies take turns, a frame each, and wait here for the peer's windows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shared.net.settings import MAX_FRAME

if TYPE_CHECKING:
    from h2.connection import H2Connection

    from shared.net.fields import Header


class Outgoing:
    """One stream: our half of it, and what the engine must know of the peer's."""

    __slots__ = (
        "chunks",
        "ended",
        "framed_end",
        "head",
        "head_ends",
        "id",
        "opened",
        "remote_ended",
        "responded",
        "size",
        "trailers",
        "unacknowledged",
    )

    def __init__(self, stream_id: int, *, opened: bool) -> None:
        self.id = stream_id
        self.opened = opened  # the peer knows of it, or is about to
        self.responded = False  # our header block has been given
        self.head: Sequence[Header] | None = None  # that block, until it is framed
        self.head_ends = False
        self.chunks: deque[bytes] = deque()
        self.size = 0
        self.trailers: Sequence[Header] | None = None
        self.ended = False  # nothing more may be given
        self.framed_end = False  # END_STREAM is on its way
        self.remote_ended = False
        self.unacknowledged = 0  # bytes received that nobody has taken

    def cut(self, most: int) -> bytes:
        """The next bytes of the body, at most so many."""
        chunks = self.chunks
        first = chunks.popleft()
        if len(first) > most:
            chunks.appendleft(first[most:])
            first = first[:most]
        elif len(first) < most and chunks:
            parts, room = [first], most - len(first)
            while chunks and room:
                part = chunks.popleft()
                if len(part) > room:
                    chunks.appendleft(part[room:])
                    part = part[:room]
                parts.append(part)
                room -= len(part)
            first = b"".join(parts)
        self.size -= len(first)
        return first


class Outbox:
    """The queues of one connection. ``frame`` moves from them to ``h2``, one block or frame at a time."""

    __slots__ = ("_bodies", "_h2", "_heads", "_opening", "_stalled", "opened", "total")

    def __init__(self, h2: H2Connection) -> None:
        self._h2 = h2
        # By stream id, so that a stream that ends leaves nothing behind.
        self._opening: OrderedDict[int, Outgoing] = OrderedDict()  # requests of ours that have not left
        self._heads: OrderedDict[int, Outgoing] = OrderedDict()  # header blocks, and ends that need no window
        self._bodies: OrderedDict[int, Outgoing] = OrderedDict()  # take turns
        self._stalled: dict[int, Outgoing] = {}  # bodies that wait for their stream's window
        self.opened = 0  # requests of ours that are open
        self.total = 0  # body bytes here

    def open(self, stream: Outgoing) -> None:
        """A request's header block is due."""
        self._opening[stream.id] = stream

    def due(self, stream: Outgoing) -> None:
        """Something of the stream is due; again is harmless."""
        if stream.opened:
            if stream.head is not None or not stream.size:
                self._heads[stream.id] = stream
            elif stream.id not in self._stalled:
                self._bodies.setdefault(stream.id, stream)

    def forget(self, stream: Outgoing) -> None:
        """The stream is over: throw away what it has."""
        self.total -= stream.size
        for queue in (self._opening, self._heads, self._bodies, self._stalled):
            queue.pop(stream.id, None)

    def unstall(self, stream_id: int) -> None:
        """The peer opened a stream's window."""
        stream = self._stalled.pop(stream_id, None)
        if stream is not None:
            self._bodies[stream_id] = stream

    def unstall_all(self) -> None:
        """The peer may have opened every window."""
        self._bodies.update(self._stalled)
        self._stalled.clear()

    def unopened(self) -> list[Outgoing]:
        """Requests that have not been framed."""
        return list(self._opening.values())

    @property
    def ready(self) -> bool:
        """Whether ``frame`` would do something."""
        return bool(
            self._heads
            or (self._bodies and self._h2.outbound_flow_control_window > 0)
            or (self._opening and self._may_open())
        )

    def frame(self) -> Outgoing | None:
        """Frame the next block or body frame; its stream, or None when nothing can be framed now."""
        if self._opening and self._may_open():
            _, stream = self._opening.popitem(last=False)
            stream.opened = True
            self.opened += 1
            self._frame_head(stream)
            return stream
        if self._heads:
            _, stream = self._heads.popitem(last=False)
            if stream.head is not None:
                self._frame_head(stream)
            else:
                self._frame_end(stream)
            return stream
        while self._bodies and self._h2.outbound_flow_control_window > 0:
            _, stream = self._bodies.popitem(last=False)
            window = self._h2.local_flow_control_window(stream.id)
            if window > 0:
                self._frame_body(stream, min(window, MAX_FRAME, self._h2.max_outbound_frame_size))
                return stream
            self._stalled[stream.id] = stream
        return None

    def _may_open(self) -> bool:
        return self.opened < self._h2.remote_settings.max_concurrent_streams

    def _frame_head(self, stream: Outgoing) -> None:
        head, stream.head = stream.head or (), None
        stream.framed_end = stream.head_ends
        self._h2.send_headers(stream.id, head, end_stream=stream.head_ends)
        if not stream.head_ends and (stream.size or stream.ended):
            self.due(stream)

    def _frame_body(self, stream: Outgoing, most: int) -> None:
        data = stream.cut(most)
        self.total -= len(data)
        last = stream.ended and not stream.size and stream.trailers is None
        stream.framed_end = last
        self._h2.send_data(stream.id, data, end_stream=last)
        if stream.size:
            self._bodies[stream.id] = stream
        elif stream.trailers is not None:
            self._frame_end(stream)

    def _frame_end(self, stream: Outgoing) -> None:
        """Trailers, or an empty frame, behind a body that has left."""
        stream.framed_end = True
        trailers, stream.trailers = stream.trailers, None
        if trailers is not None:
            self._h2.send_headers(stream.id, trailers, end_stream=True)
        else:
            self._h2.end_stream(stream.id)
