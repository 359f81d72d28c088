"""A consistent-hash ring: the same answer at every router that knows the same nodes, with nothing shared.

Each node owns many points, so that sessions spread evenly and a node that comes or goes moves only its own share.
A point is 44 bits of a hash of the node's id, packed with its owner's slot into one small integer, so a look-up is one
bisect. Adding or removing a node moves its own points alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

import xxhash

POINTS: Final = 96
"""Points of a node of weight 1: the load of 16 nodes then stays within about 10 % of even."""

_SLOT_BITS: Final = 16
_SLOT_MASK: Final = (1 << _SLOT_BITS) - 1
_DROP_BITS: Final = 20  # of a 64-bit hash, so that point and slot together are two digits of a Python integer
_MAX_POINTS: Final = 4096


class HashRing:
    """Maps 64-bit hashes to slots (small integers that name nodes)."""

    __slots__ = ("_points", "_share")

    def __init__(self) -> None:
        self._points: list[int] = []
        self._share: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self._share)

    def add(self, node_id: str, slot: int, weight: float = 1.0) -> None:
        """Add a node, or change its slot or weight. Every router must use the same weight for the same node."""
        count = min(_MAX_POINTS, max(1, round(POINTS * weight)))
        if self._share.get(node_id) == (slot, count):
            return
        self.remove(node_id)
        self._share[node_id] = (slot, count)
        for point in _points_of(node_id, slot, count):
            insort(self._points, point)

    def remove(self, node_id: str) -> None:
        """Remove a node; an unknown one is nothing."""
        share = self._share.pop(node_id, None)
        if share is None:
            return
        points = self._points
        for point in _points_of(node_id, *share):
            del points[bisect_left(points, point)]

    def lookup(self, key: int) -> int:
        """Slot of the first point at or after ``key``; -1 on an empty ring."""
        points = self._points
        if not points:
            return -1
        at = bisect_left(points, key >> _DROP_BITS << _SLOT_BITS)
        return points[at if at < len(points) else 0] & _SLOT_MASK

    def walk(self, key: int) -> Iterator[int]:
        """Distinct slots in the order of the ring from ``key`` on: whom to ask when the first cannot serve."""
        points = self._points
        count = len(points)
        at = bisect_left(points, key >> _DROP_BITS << _SLOT_BITS)
        seen: set[int] = set()
        for step in range(count):
            slot = points[(at + step) % count] & _SLOT_MASK
            if slot not in seen:
                seen.add(slot)
                yield slot
                if len(seen) == len(self._share):
                    return


def _points_of(node_id: str, slot: int, count: int) -> Iterator[int]:
    seed = xxhash.xxh3_64_intdigest(node_id.encode())
    for i in range(count):
        yield xxhash.xxh3_64_intdigest(i.to_bytes(4, "little"), seed) >> _DROP_BITS << _SLOT_BITS | slot
