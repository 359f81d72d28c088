"""Keeps what arrives in pieces, however small those are.

A bytes object costs some fifty bytes beside its content. A body that is sent two bytes at a time, in chunks or in DATA
frames, would take thirty times the memory that its length says, and limits go by that length.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final

SMALL: Final = 512  # bytes; smaller pieces are joined with what is before them
_LARGE: Final = 64 << 10  # bytes to which nothing is joined any more

# A view is a part of a large body that waits to be sent on: see ``backlog``.
Piece = bytes | bytearray | memoryview


def gather(pieces: MutableSequence[Piece], data: bytes) -> None:
    """Append ``data``, to the last piece where both are small; ``whole`` and ``b"".join`` make bytes of them."""
    if len(data) < SMALL and pieces:
        last = pieces[-1]
        if type(last) is bytearray:
            if len(last) < _LARGE:
                last += data
                return
        elif len(last) < SMALL:
            pieces[-1] = bytearray(last) + data
            return
    pieces.append(data)


def whole(pieces: MutableSequence[Piece]) -> bytes:
    """All of it; a single piece is not copied."""
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
