"""Names that count up, made on the hot path: most of each is the same as of the one before."""

from __future__ import annotations

from typing import Final

_DIGITS: Final = tuple(b"%02x" % low for low in range(256))


class Numbered:
    """Makes names: ``head``, and a number in hexadecimal of at least ``digits`` digits that grows from 1."""

    __slots__ = ("_block", "_count", "_digits", "_head")

    def __init__(self, head: str, digits: int = 1) -> None:
        self._head = head
        self._digits = digits
        self._count = 0
        self._block = b""  # all but the last two digits; empty while it is not known

    def next(self) -> bytes:
        """The next one."""
        self._count = count = self._count + 1
        low = count & 0xFF
        if low and self._block:
            return self._block + _DIGITS[low]
        name = f"{self._head}{count:0{self._digits}x}".encode("ascii")
        if count >> 8 or self._digits > 2:
            self._block = name[:-2]
        return name
