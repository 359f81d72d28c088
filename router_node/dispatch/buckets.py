"""Nodes in buckets by level, with constant-time moves and draws from the best non-empty bucket.

A bitmask says which buckets are not empty, so finding the best takes the same time with 4 nodes and with 1,000.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Final

from router_node.dispatch.types import NodeState

ROOM_LEVELS: Final = 256


class Buckets:
    """``levels`` buckets of nodes; a node is in one at most. ``draw`` begins at level 0, ``above`` at the last."""

    __slots__ = ("_bits", "_buckets", "_place", "levels", "mask")

    def __init__(self, levels: int) -> None:
        self._buckets: list[list[NodeState]] = [[] for _ in range(levels)]
        self.levels: list[int] = []
        """By slot: the level of a node, -1 where it is in no bucket. Not to be changed."""
        self._bits = [1 << level for level in range(levels)]
        self._place: list[int] = []  # by slot: index within the bucket
        self.mask = 0
        """Bit i is set when bucket i holds a node."""

    def __len__(self) -> int:
        """Number of nodes in buckets."""
        return sum(level >= 0 for level in self.levels)

    def admit(self, slot: int) -> None:
        """Nodes of this slot may be placed from now on."""
        more = slot + 1 - len(self.levels)
        if more > 0:
            self.levels += [-1] * more
            self._place += [-1] * more

    def place(self, node: NodeState, level: int) -> None:
        """Put a node of an admitted slot into the bucket ``level``, out of the one it was in."""
        slot = node.slot
        old = self.levels[slot]
        if old >= 0:
            self._take(node, old)
        bucket = self._buckets[level]
        if not bucket:
            self.mask |= self._bits[level]
        self._place[slot] = len(bucket)
        self.levels[slot] = level
        bucket.append(node)

    def remove(self, node: NodeState) -> None:
        """Take a node out; one that is in no bucket is nothing."""
        slot = node.slot
        old = self.levels[slot]
        if old >= 0:
            self._take(node, old)
            self.levels[slot] = -1

    def draw(self, want: int, random: Callable[[], float]) -> list[NodeState]:
        """Up to ``want`` distinct nodes of the lowest levels there are; ``random`` is as ``Random.random``.

        From a bucket that holds more than are wanted, a random run of neighbours: its order is arbitrary already.
        """
        out: list[NodeState] = []
        mask = self.mask
        while mask:
            low = mask & -mask
            bucket = self._buckets[low.bit_length() - 1]
            size = len(bucket)
            if size <= want:
                out += bucket
                want -= size
                if not want:
                    return out
            else:
                at = int(random() * size)
                out += bucket[at : at + want]
                if at + want > size:
                    out += bucket[: at + want - size]
                return out
            mask ^= low
        return out

    def above(self, level: int) -> list[list[NodeState]]:
        """Buckets that hold nodes at ``level`` or higher, the highest first. Not to be changed."""
        out = []
        mask = self.mask >> level
        while mask:
            top = mask.bit_length() - 1
            out.append(self._buckets[level + top])
            mask ^= 1 << top
        return out

    def last(self) -> list[NodeState]:
        """The bucket of the highest level that holds a node; empty when none does. Not to be changed."""
        return self._buckets[self.mask.bit_length() - 1] if self.mask else []

    def _take(self, node: NodeState, level: int) -> None:
        bucket = self._buckets[level]
        last = bucket.pop()
        if last is not node:
            at = self._place[node.slot]
            bucket[at] = last
            self._place[last.slot] = at
        if not bucket:
            self.mask ^= self._bits[level]


def room_level(tokens: int) -> int:
    """The bucket of ``tokens`` (1 or more) of room: four to an octave, growing with the room.

    Powers of two are in the middle of theirs: capacities often are such, and an idle node should not move with each
    request.
    """
    level = int(log2(tokens) * 4.0 + 0.5)
    return level if level < ROOM_LEVELS else ROOM_LEVELS - 1
