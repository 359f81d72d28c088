"""Where each conversation's KV cache is: a bounded memory of the sessions this router has sent somewhere.

A session whose node is the one the ring gives needs no record to be found again by any router; one that load, a drain
or a change of the ring has put elsewhere does. The exceptions ("pins") and the rest ("homes") are kept apart, so that
common sessions never push out an exception. The homes matter when the ring changes: a session seen before stays with
its cache rather than following the ring.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

OWNER_BITS: Final = 32
OWNER_MASK: Final = (1 << OWNER_BITS) - 1
_MAX_TOKENS: Final = (1 << 30) - 1


class SessionTable:
    """Session hash -> (incarnation of a node, prompt tokens it has seen), packed into one integer.

    Two least-recently-used tables of ``limit`` entries each; every operation is constant time, eviction too.
    """

    __slots__ = ("_homes", "_limit", "_pins")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pins: OrderedDict[int, int] = OrderedDict()
        self._homes: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        """Sessions remembered."""
        return len(self._pins) + len(self._homes)

    @property
    def pins(self) -> int:
        """Sessions remembered to be elsewhere than the ring says."""
        return len(self._pins)

    def find(self, key: int) -> int:
        """``tokens << OWNER_BITS | incarnation`` of a session's last node, -1 when it is not known."""
        found = self._pins.get(key)
        return self._homes.get(key, -1) if found is None else found

    def record(self, key: int, incarnation: int, tokens: int, at_home: bool) -> None:
        """Note that a session went to a node with a prompt of ``tokens``; ``at_home`` when the ring says the same."""
        value = (tokens if tokens < _MAX_TOKENS else _MAX_TOKENS) << OWNER_BITS | incarnation
        if at_home:
            table = self._homes
            if self._pins:
                self._pins.pop(key, None)
        else:
            table = self._pins
            self._homes.pop(key, None)
        table[key] = value
        table.move_to_end(key)
        if len(table) > self._limit:
            table.popitem(last=False)
