"""Nodes in buckets by level, with constant-time moves and draws from the best non-empty bucket.

A bitmask says which buckets are not empty, so finding the best takes the same time with 4 nodes and with 1,000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router_node.dispatch.types import NodeState

ROOM_LEVELS: Final = 256


class Buckets:
    """``levels`` buckets of nodes; a node is in one at most. ``draw`` begins at level 0, ``above`` at the last."""

    __slots__ = ("_buckets", "_level", "_place", "mask")

    def __init__(self, levels: int) -> None:
        self._buckets: list[list[NodeState]] = [[] for _ in range(levels)]
        self._level: list[int] = []  # by slot; -1 where the node is in no bucket
        self._place: list[int] = []  # by slot: index within the bucket
        self.mask = 0
        """Bit i is set when bucket i holds a node."""

    def __len__(self) -> int:
        """Number of nodes in buckets."""
        return sum(level >= 0 for level in self._level)

    def level(self, node: NodeState) -> int:
        """The node's level, -1 for none."""
        return self._level[node.slot] if node.slot < len(self._level) else -1

    def place(self, node: NodeState, level: int) -> None:
        """Put a node into the bucket ``level``, out of the one it was in."""
        slot = node.slot
        try:
            old = self._level[slot]
        except IndexError:
            self._grow(slot)
            old = -1
        if old == level:
            return
        if old >= 0:
            self._take(slot, old)
        bucket = self._buckets[level]
        self._place[slot] = len(bucket)
        self._level[slot] = level
        bucket.append(node)
        self.mask |= 1 << level

    def remove(self, node: NodeState) -> None:
        """Take a node out; one that is in no bucket is nothing."""
        slot = node.slot
        if slot < len(self._level) and (old := self._level[slot]) >= 0:
            self._take(slot, old)
            self._level[slot] = -1

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

    def _take(self, slot: int, level: int) -> None:
        bucket = self._buckets[level]
        last = bucket.pop()
        if last.slot != slot:
            at = self._place[slot]
            bucket[at] = last
            self._place[last.slot] = at
        if not bucket:
            self.mask ^= 1 << level

    def _grow(self, slot: int) -> None:
        more = max(slot + 1, 2 * len(self._level), 16) - len(self._level)
        self._level += [-1] * more
        self._place += [-1] * more


def room_level(tokens: int) -> int:
    """The bucket of ``tokens`` (1 or more) of room: four to an octave, growing with the room."""
    bits = tokens.bit_length()
    if bits < 3:
        return tokens
    level = (bits << 2) + (tokens >> (bits - 3) & 3)
    return level if level < ROOM_LEVELS else ROOM_LEVELS - 1
