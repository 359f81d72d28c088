"""Names that count up are the head and the number, each once."""

from __future__ import annotations

from shared.numbered import Numbered


def test_numbers_grow_in_hexadecimal() -> None:
    numbered = Numbered("w-")
    assert [numbered.next() for _ in range(70_000)] == [b"w-%x" % n for n in range(1, 70_001)]


def test_short_numbers_are_filled_up_with_zeros() -> None:
    numbered = Numbered("r-", 8)
    assert [numbered.next() for _ in range(600)] == [b"r-%08x" % n for n in range(1, 601)]
