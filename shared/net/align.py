"""Cuts what a socket delivers into whole HTTP/2 frames.

An engine that was given half of a DATA frame, and whose stream ends before the other half comes, loses those bytes
from the connection's window for good (ngh2 0.3 reports a frame only when it is whole, and drops what it has when the
stream closes). So engines are fed whole frames. The walk over frame headers costs about 0.1 µs a frame.
"""

from __future__ import annotations

from struct import Struct

from shared.net.settings import FRAME_HEADER, MAX_FRAME

_word = Struct(">I").unpack_from
_LONGEST = FRAME_HEADER + MAX_FRAME

Piece = bytes | bytearray | memoryview


class FrameAligner:
    """Remembers the unfinished frame of one connection: at most one, of at most 16 KiB."""

    __slots__ = ("_missing", "_skip", "_tail", "kept")

    def __init__(self, skip: int = 0) -> None:
        """``skip``: bytes at the start that are no frames (24 on a server: the preface)."""
        self._skip = skip
        self._tail = bytearray()
        self.kept = 0  # unfinished frames so far: tells one from the next
        self._missing = 0  # bytes that the frame in the tail still lacks; 0 when even its header is incomplete

    @property
    def holding(self) -> int:
        """Bytes of the unfinished frame."""
        return len(self._tail)

    def cut(self, data: bytes) -> tuple[Piece, ...]:
        """The whole frames that are now there, in one to two pieces.

        A frame that is longer than allowed is passed on at once, unfinished: the engine refuses it by its header.
        """
        first: Piece = b""
        at = start = 0
        if self._tail:
            start = self._complete(data)
            if start < 0:
                return ()
            first = self._tail
            self._tail = bytearray()
            at = start
        elif self._skip:
            at = min(self._skip, len(data))
            self._skip -= at
        size = len(data)
        last = size - FRAME_HEADER
        begin = at
        while at <= last:
            begin = at
            at += FRAME_HEADER + (_word(data, at)[0] >> 8)
        if at == size:
            whole: Piece = memoryview(data)[start:] if start else data
        else:
            end = self._keep(data, begin, at)
            whole = memoryview(data)[start:end]
        if not first:
            return (whole,) if len(whole) else ()
        return (first, whole) if len(whole) else (first,)

    def _keep(self, data: bytes, begin: int, at: int) -> int:
        """Put the unfinished frame aside; returns where the whole ones end."""
        self.kept += 1
        if at < len(data):  # not even a whole frame header
            self._tail += data[at:]
            self._missing = 0
            return at
        if at - begin > _LONGEST:
            return len(data)
        self._tail += data[begin:]
        self._missing = at - len(data)
        return begin

    def _complete(self, data: bytes) -> int:
        """Finish the frame in the tail; returns how many bytes that took, or -1 when there are not enough."""
        tail = self._tail
        used = 0
        if not self._missing:
            used = min(FRAME_HEADER - len(tail), len(data))
            tail += data[:used]
            if len(tail) < FRAME_HEADER:
                return -1
            length = _word(tail, 0)[0] >> 8
            if length > MAX_FRAME or length == 0:
                return used
            self._missing = length
        missing = self._missing
        if len(data) - used < missing:
            tail += data[used:] if used else data
            self._missing -= len(data) - used
            return -1
        tail += data[used : used + missing]
        self._missing = 0
        return used + missing
