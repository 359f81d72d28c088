"""A bounded memory that forgets what was not used of late, at the price of a plain dictionary.

Two generations: what is put goes to the young one; when that holds half the bound, it becomes the old one and the old
one is dropped, an entry with each later put, so that no call pays for many. An entry survives by being put again.
Compared with an exact least-recently-used order it may forget an entry after half a turnover, and costs no linked list:
a use is one look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

V = TypeVar("V")
Key = Any
"""An integer. Not said to be one, so that the compiled form passes it on as the object that it is."""


class Generations(Generic[V]):
    """Integers to values, at most ``limit`` live. ``young`` and ``old`` may be read by the owner's own loops."""

    __slots__ = ("_dropped", "_half", "old", "young")

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self.young: dict[Key, V] = {}
        self.old: dict[Key, V] = {}
        self._dropped: dict[Key, V] = {}

    def __len__(self) -> int:
        """Entries that can be found."""
        return len(self.young) + sum(key not in self.young for key in self.old)

    def get(self, key: Key) -> V | None:
        """The value of a key, None for none."""
        found = self.young.get(key)
        return self.old.get(key) if found is None else found

    def items(self) -> Iterator[tuple[int, V]]:
        """Every entry, once."""
        yield from self.young.items()
        for key, value in self.old.items():
            if key not in self.young:
                yield key, value

    def put(self, key: Key, value: V) -> None:
        """Set a key; it is as young as can be."""
        self.young[key] = value
        if self._dropped:
            self._dropped.popitem()
        if len(self.young) >= self._half:
            self._turn()

    def discard(self, key: Key) -> None:
        """Forget a key."""
        self.young.pop(key, None)
        self.old.pop(key, None)

    def settle(self, more: int) -> None:
        """Do what ``put`` would have, for an owner that has set entries of ``young`` itself, ``more`` of them new."""
        dropped = self._dropped
        if dropped:
            drop = dropped.popitem
            for _ in range(min(more, len(dropped))):
                drop()
        if len(self.young) >= self._half:
            self._turn()

    def _turn(self) -> None:
        # As many were put as there were to drop, so nothing is left of those dropped before, or next to nothing.
        self._dropped = self.old
        self.old = self.young
        self.young = {}
