"""Who holds which prompt prefix: chained hashes of the prompt's bytes, without a tokenizer.

A prompt is cut into blocks of ``BLOCK_BYTES``; the hash of each block is seeded with the hash of the one before, so one
number stands for all the text up to its end. The map remembers the nodes that each such prefix was sent to. It is
approximate: a node may have evicted what it held, which its cached-token counts then show (``NodeState.trust``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from shared.prefix import BLOCK_BYTES, MAX_BLOCKS, hash_blocks

__all__ = ["BLOCK_BYTES", "MAX_BLOCKS", "PrefixMap", "hash_blocks"]

from router_node.dispatch.generations import Generations

EPOCH_BITS: Final = 24
_EPOCH_MASK: Final = (1 << EPOCH_BITS) - 1
_LOST_KEPT: Final = 1024


class PrefixMap:
    """Prefix hash -> the set of nodes that were sent it, as a bitmask over slots. About ``limit`` prefixes.

    An entry is one integer, ``mask << 24 | epoch``. The epoch moves on with every node whose cache is lost; an entry of
    an older epoch loses the bits of the nodes lost since when it is next read. So a lost node costs nothing at the
    time, and its slot can be given to another at once.
    """

    __slots__ = ("_entries", "_epoch", "_lost")

    def __init__(self, limit: int) -> None:
        self._entries = Generations(limit)
        self._epoch = 0
        self._lost: deque[int] = deque(maxlen=_LOST_KEPT)  # slots; the last one began the current epoch

    def __len__(self) -> int:
        """Prefixes remembered."""
        return len(self._entries)

    def match(self, chain: Sequence[int]) -> tuple[list[int], int]:
        """Entries of the leading blocks of ``chain`` that anyone holds, from the first block on; test with ``bit_of``.

        And how many of the leading ones ``insert`` need not renew. Changes nothing.
        """
        young = self._entries.young.get
        old = self._entries.old.get
        epoch = self._epoch
        found: list[int] = []
        fresh = -1
        for key in chain:
            entry = young(key)
            if entry is None:
                entry = old(key)
                if entry is None:
                    break
                if fresh < 0:
                    fresh = len(found)
            if entry & _EPOCH_MASK != epoch:
                entry = self._renewed(entry)
                if entry <= _EPOCH_MASK:
                    break  # nobody is left; to be overwritten, or forgotten with its generation
                if fresh < 0:
                    fresh = len(found)
            found.append(entry)
        return found, len(found) if fresh < 0 else fresh

    def insert(self, chain: Sequence[int], found: Sequence[int], fresh: int, slot: int) -> int:
        """Note that ``slot`` was sent ``chain``; ``found`` and ``fresh`` are what ``match`` has just said of it.

        Returns the number of leading blocks that it was known to hold before.
        """
        bit = bit_of(slot)
        known = depth = len(found)
        if depth and not found[0] & bit:
            known = 0
        while known and not found[known - 1] & bit:
            known -= 1
        first = known if known < fresh else fresh
        count = len(chain)
        if first == count:
            return known
        young = self._entries.young
        for key, entry in zip(chain[first:depth], found[first:], strict=True):
            young[key] = entry | bit
        entry = bit | self._epoch
        for key in chain[depth:]:
            young[key] = entry
        self._entries.settle(count - first)
        return known

    def forget(self, chain: Sequence[int], slot: int, start: int = 0) -> None:
        """Take back that ``slot`` was sent the blocks of ``chain`` from ``start`` on."""
        bit = bit_of(slot)
        for key in chain[start:]:
            entry = self._entries.get(key)
            if entry is not None and entry & bit:
                entry ^= bit
                if entry <= _EPOCH_MASK:
                    self._entries.discard(key)  # an entry in use has a holder
                else:
                    self._entries.put(key, entry)

    def lose(self, slot: int) -> None:
        """The cache of ``slot`` is gone (it restarted or left); the slot may be given to another node at once."""
        self._epoch = self._epoch + 1 & _EPOCH_MASK
        self._lost.append(slot)

    def _renewed(self, entry: int) -> int:
        since = self._epoch - (entry & _EPOCH_MASK) & _EPOCH_MASK
        holders = entry >> EPOCH_BITS
        if since > len(self._lost):
            holders = 0  # too old to say which of its nodes were lost
        else:
            for back in range(1, since + 1):
                holders &= ~(1 << self._lost[-back])
        return holders << EPOCH_BITS | self._epoch


def bit_of(slot: int) -> int:
    """The bit of ``slot`` in an entry of the map."""
    return 1 << EPOCH_BITS + slot
