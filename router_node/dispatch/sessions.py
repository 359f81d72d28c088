"""Where each conversation's KV cache is: a bounded memory of the sessions this router has sent somewhere.

A session whose node is the one the ring gives needs no record to be found by any router; one that load, a drain or a
change of the ring has put elsewhere does. Both are remembered here: when the ring changes, a session seen before stays
with its cache rather than following the ring, and the tokens it has seen say what staying is worth.
"""

from __future__ import annotations

from array import array
from typing import Final

OWNER_MASK: Final = (1 << 32) - 1
TOKENS_SHIFT: Final = 32
_MAX_TOKENS: Final = (1 << 28) - 1


class SessionTable:
    """Session hash -> node and prompt tokens it has seen there: ``tokens << TOKENS_SHIFT | incarnation of the node``.

    A cache of pairs in two flat arrays: a session may be in either place of its pair, and goes when two others that
    fall into the same pair were used after it. There are two places or more for each of ``limit`` sessions, so few are
    lost before that many are known. Nothing is ever moved, grown or swept, and a use touches few cache lines.
    """

    __slots__ = ("_keys", "_mask", "_values")

    def __init__(self, limit: int) -> None:
        places = 1 << (2 * limit - 1).bit_length()
        self._keys = array("Q", bytes(8 * places))
        self._values = array("Q", bytes(8 * places))
        self._mask = places - 2

    def __len__(self) -> int:
        """Sessions remembered."""
        return sum(value != 0 for value in self._values)

    def find(self, key: int) -> int:
        """What is recorded of a session, 0 for nothing."""
        at = key & self._mask
        keys = self._keys
        if keys[at] == key:
            return self._values[at]
        at += 1
        return self._values[at] if keys[at] == key else 0

    def record(self, key: int, incarnation: int, tokens: int) -> None:
        """Note that a session went to a node with a prompt of ``tokens``."""
        value = (tokens if tokens < _MAX_TOKENS else _MAX_TOKENS) << TOKENS_SHIFT | incarnation
        at = key & self._mask
        keys = self._keys
        values = self._values
        if keys[at] != key:
            # The pair's first place is for the one used last.
            keys[at + 1] = keys[at]
            values[at + 1] = values[at]
            keys[at] = key
        values[at] = value
