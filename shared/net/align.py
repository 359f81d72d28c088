"""Cuts what a socket delivers into whole HTTP/2 frames.

An engine that was given half of a DATA frame, and whose stream ends before the other half comes, loses those bytes
from the connection's window for good (ngh2 0.3 reports a frame only when it is whole, and drops what it has when the
stream closes). So engines are fed whole frames. The walk over frame headers costs about 0.1 µs a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from shared.net.settings import FRAME_HEADER, MAX_FRAME

_word: Final = Struct(">I").unpack_from
# A header block of up to 13 fields, none of its 17 frames longer than this, decodes to less than 64 KiB: each field
# is at most one reference to a 4 KiB table, or text that Huffman coding shrank to five eighths at best.
WORDY_FRAME: Final = 436
SURELY_SMALL: Final = 13
_WORDY: Final = WORDY_FRAME << 8 | 0xFF
_HEADERS: Final = 0x1
_CONTINUATION: Final = 0x9
_END_HEADERS: Final = 0x4
_LONGEST: Final = FRAME_HEADER + MAX_FRAME

Piece = bytes | bytearray | memoryview


class FrameAligner:
    """Remembers the unfinished frame of one connection: at most one, of at most 16 KiB."""

    __slots__ = ("_missing", "_odd", "_skip", "_tail", "_take", "_wordy_always", "kept", "wordy")

    def __init__(self, take: Callable[[Piece], None], skip: int = 0) -> None:
        """``take`` gets the whole frames; ``skip``: bytes at the start that are no frames (24 on a server)."""
        self._take = take
        self._skip = skip
        self._odd = skip > 0  # the next cut does not begin with a plain frame, or ``wordy`` is to be reset
        self._tail = bytearray()
        self.wordy = False  # the last cut may complete a header block with much text
        self._wordy_always = False
        self.kept = 0  # unfinished frames so far: tells one from the next
        self._missing = 0  # bytes that the frame in the tail still lacks; 0 when even its header is incomplete

    @property
    def holding(self) -> int:
        """Bytes of the unfinished frame."""
        return len(self._tail)

    def feed(self, data: bytes | memoryview) -> None:
        """Pass on the frames that are now whole, in one or two pieces.

        A frame that is longer than allowed is passed on at once, unfinished: the engine refuses it by its header.
        """
        at = start = 0
        if self._odd:
            at, start = self._resume(data)
            if at < 0:
                return
        size = len(data)
        last = size - FRAME_HEADER
        begin = at
        if isinstance(data, bytes):  # as nearly always, and then no number needs an object
            while at <= last:
                begin = at
                length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
                if length >= WORDY_FRAME and _has_headers(data[at + 3]):
                    self._weigh(data, at)
                at += FRAME_HEADER + length
        else:
            while at <= last:
                begin = at
                word = _word(data, at)[0]
                if word > _WORDY and _has_headers(word & 0xFF):
                    self._weigh(data, at)
                at += FRAME_HEADER + (word >> 8)
        if at != size:
            end = self._keep(data, begin, at)
            if end > start:
                self._take(memoryview(data)[start:end])
        elif not start:
            self._take(data)
        elif at > start:
            self._take(memoryview(data)[start:])

    def cut(self, data: bytes | memoryview, most: int) -> int:
        """Where to end the next ``feed``: behind the first frame that reaches ``most`` bytes, or at the data's end."""
        if self._tail:
            return min(len(data), self._missing or FRAME_HEADER - len(self._tail))
        at = self._skip
        last = len(data) - FRAME_HEADER
        while at < most:
            if at > last:
                return len(data)
            at += FRAME_HEADER + (_word(data, at)[0] >> 8)
        return min(at, len(data))

    def _resume(self, data: bytes | memoryview) -> tuple[int, int]:
        """What the last cut left behind: where the walk over frames begins, and what is passed on; -1: nothing yet."""
        self.wordy = self._wordy_always
        self._odd = self.wordy or self._skip > 0
        if self._tail:
            start = self._complete(data)
            if start < 0:
                self._odd = True
                return -1, 0
            tail = self._tail
            self._tail = bytearray()
            self._weigh(tail, 0)
            self._take(tail)
            return start, start
        at = min(self._skip, len(data))
        self._skip -= at
        return at, 0

    def _weigh(self, data: Piece, at: int) -> None:
        """Note a frame with much header text."""
        word = _word(data, at)[0]
        if word > _WORDY and _has_headers(word & 0xFF):
            self.wordy = self._odd = True
            if at + 4 >= len(data) or not data[at + 4] & _END_HEADERS:
                # Its block may end in a later cut, with a small frame. Few peers do this, and the price is small.
                self._wordy_always = True

    def _keep(self, data: bytes | memoryview, begin: int, at: int) -> int:
        """Put the unfinished frame aside; returns where the whole ones end."""
        self.kept += 1
        self._odd = True
        if at < len(data):  # not even a whole frame header
            self._tail += data[at:]
            self._missing = 0
            return at
        if at - begin > _LONGEST:
            return len(data)
        self._tail += data[begin:]
        self._missing = at - len(data)
        return begin

    def _complete(self, data: bytes | memoryview) -> int:
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


def _has_headers(kind: int) -> bool:
    return kind in (_HEADERS, _CONTINUATION)
