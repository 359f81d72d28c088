"""A bounded memory that forgets what was not used of late, at the price of a plain dictionary.

Two generations: what is put goes to the young one; when that holds half the bound, it becomes the old one and the old
one is dropped, an entry with each later put, so that no call pays for many. An entry survives by being put again.
Compared with an exact least-recently-used order it may forget an entry after half a turnover, and costs no linked list:
a use is one look-up.
"""

from __future__ import annotations

from collections.abc import Iterator


class Generations:
    """``int -> int``, at most ``limit`` live entries. ``young`` and ``old`` may be read by the owner's own loops."""

    __slots__ = ("_dropped", "_half", "old", "young")

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self.young: dict[int, int] = {}
        self.old: dict[int, int] = {}
        self._dropped: dict[int, int] = {}

    def __len__(self) -> int:
        """Entries that can be found."""
        return len(self.young) + sum(key not in self.young for key in self.old)

    def get(self, key: int) -> int | None:
        """The value of a key, None for none."""
        found = self.young.get(key)
        return self.old.get(key) if found is None else found

    def items(self) -> Iterator[tuple[int, int]]:
        """Every entry, once."""
        yield from self.young.items()
        for key, value in self.old.items():
            if key not in self.young:
                yield key, value

    def put(self, key: int, value: int) -> None:
        """Set a key; it is as young as can be."""
        self.young[key] = value
        if self._dropped:
            self._dropped.popitem()
        if len(self.young) >= self._half:
            self._turn()

    def discard(self, key: int) -> None:
        """Forget a key."""
        self.young.pop(key, None)
        self.old.pop(key, None)

    def settle(self, puts: int) -> None:
        """Do what ``puts`` calls of ``put`` would have, for an owner that has set entries of ``young`` itself."""
        dropped = self._dropped
        if dropped:
            drop = dropped.popitem
            for _ in range(min(puts, len(dropped))):
                drop()
        if len(self.young) >= self._half:
            self._turn()

    def _turn(self) -> None:
        # As many were put as there were to drop, so nothing is left of those dropped before, or next to nothing.
        self._dropped = self.old
        self.old = self.young
        self.young = {}
