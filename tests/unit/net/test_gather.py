"""Pieces are kept at about the cost of their content."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.net.gather import SMALL, Piece, gather, whole


@given(st.lists(st.one_of(st.binary(max_size=8), st.binary(min_size=SMALL - 2, max_size=SMALL + 2)), max_size=60))
def test_nothing_is_lost_or_reordered(data: list[bytes]):
    pieces: list[Piece] = []
    for each in data:
        gather(pieces, each)
    assert whole(pieces) == b"".join(data)
    assert type(whole(pieces)) is bytes


@pytest.mark.parametrize("size", [1, 2, 7, 100, SMALL - 1, SMALL, 4000])
def test_small_pieces_take_little_more_than_their_content(size: int):
    pieces: list[Piece] = []
    total = 400_000
    for at in range(total // size):
        gather(pieces, at.to_bytes(4, "big")[:1] * size)
    held = sys.getsizeof(pieces) + sum(sys.getsizeof(piece) for piece in pieces)
    assert held < 1.25 * total + 1000


def test_small_and_large_in_turn_take_little_more_than_their_content():
    pieces: list[Piece] = []
    for _ in range(400):
        gather(pieces, b"x" * SMALL)
        gather(pieces, b"y" * 2)
    held = sys.getsizeof(pieces) + sum(sys.getsizeof(piece) for piece in pieces)
    assert held < 1.5 * 400 * (SMALL + 2)


def test_a_single_piece_is_not_copied():
    data = b"x" * 1000
    pieces: list[Piece] = []
    gather(pieces, data)
    assert whole(pieces) is data
    assert whole([]) == b""
