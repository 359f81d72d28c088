"""Who holds which prompt prefix: chained hashes of the prompt's bytes, without a tokenizer.

A prompt is cut into blocks of ``BLOCK_BYTES``; the hash of each block is seeded with the hash of the one before, so one
number stands for all the text up to its end. The map remembers the nodes that each such prefix was sent to. It is
approximate: a node may have evicted what it held, which its cached-token counts then show (``NodeState.trust``).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import xxhash

BLOCK_BYTES: Final = 512
MAX_BLOCKS: Final = 64

_STAMP_BITS: Final = 32
_STAMP_MASK: Final = (1 << _STAMP_BITS) - 1
_GENERATIONS: Final = 8
_KILLS_KEPT: Final = 1024


def hash_blocks(data: bytes | bytearray | memoryview, seed: int = 0, limit: int = MAX_BLOCKS) -> tuple[int, ...]:
    """Chained xxh3-64 of the first ``limit`` whole blocks of ``data``; ``seed`` is an unsigned 64-bit number."""
    view = memoryview(data)
    digest = xxhash.xxh3_64_intdigest
    end = min(len(view) // BLOCK_BYTES, limit) * BLOCK_BYTES
    out = []
    for start in range(0, end, BLOCK_BYTES):
        seed = digest(view[start : start + BLOCK_BYTES], seed)
        out.append(seed)
    return tuple(out)


class PrefixMap:
    """Prefix hash -> the set of nodes that were sent it, as a bitmask over slots. At most ``limit`` prefixes.

    An entry is one integer, ``mask << 32 | stamp``. The stamp moves on eight times while the map fills once, and with
    every node whose cache is lost. An entry with the current stamp needs no work; an older one is moved to the young
    end and loses the bits of the nodes lost since. So a use costs a look-up, a busy entry is moved eight times per
    turnover rather than at each use, and a lost node costs nothing at the time.
    """

    __slots__ = ("_entries", "_kills", "_left", "_limit", "_stamp")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[int, int] = OrderedDict()
        self._stamp = 0
        self._left = max(1, limit // _GENERATIONS)  # insertions until the stamp moves on
        self._kills: deque[tuple[int, int]] = deque(maxlen=_KILLS_KEPT)  # (stamp from which on, bit of the slot)

    def __len__(self) -> int:
        """Prefixes remembered."""
        return len(self._entries)

    def match(self, chain: Sequence[int], touch: bool = True) -> list[int]:
        """Holder masks of the leading blocks of ``chain`` that anyone holds, from the first block on.

        ``touch=False`` leaves the map as it is.
        """
        get = self._entries.get
        stamp = self._stamp
        masks: list[int] = []
        for key in chain:
            value = get(key)
            if value is None:
                break
            mask = value >> _STAMP_BITS
            if value & _STAMP_MASK != stamp:
                mask = self._without_lost(mask, value & _STAMP_MASK)
                if touch:
                    self._entries[key] = mask << _STAMP_BITS | stamp
                    self._entries.move_to_end(key)
            if not mask:
                break
            masks.append(mask)
        return masks

    def insert(self, chain: Sequence[int], masks: Sequence[int], slot: int) -> int:
        """Note that ``slot`` was sent ``chain``; ``masks`` is what ``match`` has just said of it.

        Returns the number of leading blocks that it was known to hold before.
        """
        entries = self._entries
        stamp = self._stamp
        bit = 1 << slot
        depth = len(masks)
        known = 0
        for known in range(depth, 0, -1):
            if masks[known - 1] & bit:
                break
        else:
            known = 0
        for i in range(known, depth):
            entries[chain[i]] = (masks[i] | bit) << _STAMP_BITS | stamp
        fresh = len(chain) - depth
        if fresh > 0:
            value = bit << _STAMP_BITS | stamp
            for i in range(depth, len(chain)):
                entries[chain[i]] = value
            while len(entries) > self._limit:
                entries.popitem(last=False)
            self._left -= fresh
            if self._left <= 0:
                self._advance()
        return known

    def forget(self, chain: Sequence[int], slot: int, start: int = 0) -> None:
        """Take back that ``slot`` was sent the blocks of ``chain`` from ``start`` on."""
        bit = 1 << slot << _STAMP_BITS
        for key in chain[start:]:
            value = self._entries.get(key)
            if value is not None and value & bit:
                self._entries[key] = value ^ bit

    def lose(self, slot: int) -> None:
        """The cache of ``slot`` is gone (it restarted or left); the slot may be given to another node at once."""
        self._advance()
        self._kills.append((self._stamp, 1 << slot))

    def _advance(self) -> None:
        self._stamp = self._stamp + 1 & _STAMP_MASK
        self._left = max(1, self._limit // _GENERATIONS)

    def _without_lost(self, mask: int, stamp: int) -> int:
        kills = self._kills
        if len(kills) == _KILLS_KEPT and stamp < kills[0][0]:
            return 0  # too old to say which of its nodes were lost since
        for since, bit in reversed(kills):
            if since <= stamp:
                break
            mask &= ~bit
        return mask
