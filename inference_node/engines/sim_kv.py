"""Paged KV of the simulator: reference-counted blocks and a prefix cache with LRU eviction. Pure state, no I/O.

A full block is known by a hash that chains over all tokens before it, beginning with the caller's salt, so callers
with different salts never share. A block that nobody references stays findable until its room is needed; then the one
unused for longest goes first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import xxhash


def block_hashes(tokens: Sequence[int], block_tokens: int, salt: str, parent: int | None = None) -> list[int]:
    """The chained hash of each full block of ``tokens``; ``parent`` continues an earlier chain."""
    raw = array("I", tokens).tobytes()
    width = block_tokens * 4
    seed = xxhash.xxh3_64_intdigest(salt.encode("utf-8", "surrogatepass")) if parent is None else parent
    out = []
    for at in range(0, len(raw) - width + 1, width):
        seed = xxhash.xxh3_64_intdigest(raw[at : at + width], seed)
        out.append(seed)
    return out


class BlockPool:
    """A fixed number of blocks, handed out by number."""

    __slots__ = ("_block_of", "_fresh", "_hash_of", "_plain", "_refs", "_unused", "capacity", "evictions", "keep")

    def __init__(self, capacity: int, keep: bool = True) -> None:
        """``keep`` switches the prefix cache on."""
        self.capacity = capacity
        self.keep = keep
        self.evictions = 0
        self._fresh = 0  # blocks from this number on were never used
        self._plain: list[int] = []  # free, holding nothing that could be found
        self._unused: OrderedDict[int, None] = OrderedDict()  # free but findable, longest unused first
        self._refs: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that could be allocated now."""
        return self.capacity - len(self._refs)

    @property
    def usage(self) -> float:
        """Share of blocks that are referenced, 0 to 1."""
        return len(self._refs) / self.capacity

    def find(self, hashes: Iterable[int]) -> list[int]:
        """The longest run of cached blocks that these hashes begin with."""
        found = []
        for key in hashes:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def free_beside(self, blocks: Sequence[int]) -> int:
        """Blocks that could be allocated once ``blocks`` (from ``find``) were taken."""
        return self.free - sum(1 for block in blocks if block not in self._refs)

    def take(self, blocks: Iterable[int]) -> None:
        """Reference cached blocks."""
        for block in blocks:
            count = self._refs.get(block)
            if count is None:
                del self._unused[block]
                count = 0
            self._refs[block] = count + 1

    def allocate(self, count: int) -> list[int] | None:
        """So many blocks, referenced once, or None (and nothing changed) when they are not there."""
        if count > self.free:
            return None
        out = []
        for _ in range(count):
            if self._plain:
                block = self._plain.pop()
            elif self._fresh < self.capacity:
                block = self._fresh
                self._fresh += 1
            else:
                block, _ = self._unused.popitem(last=False)
                del self._block_of[self._hash_of.pop(block)]
                self.evictions += 1
            self._refs[block] = 1
            out.append(block)
        return out

    def publish(self, block: int, key: int) -> None:
        """Make a full block findable; a second block of the same content stays private."""
        if self.keep and key not in self._block_of and block not in self._hash_of:
            self._block_of[key] = block
            self._hash_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each, last block first: a prefix is worth more than what follows it."""
        for block in reversed(blocks):
            count = self._refs[block] - 1
            if count:
                self._refs[block] = count
                continue
            del self._refs[block]
            if block in self._hash_of:
                self._unused[block] = None
            else:
                self._plain.append(block)
