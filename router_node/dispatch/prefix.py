"""Who holds which prompt prefix: chained hashes of the prompt's bytes, without a tokenizer.

A prompt is cut into blocks of ``BLOCK_BYTES``; the hash of each block is seeded with the hash of the one before, so one
number stands for all the text up to its end. The map remembers the nodes that each such prefix was sent to. It is
approximate: a node may have evicted what it held, which its cached-token counts then show (``NodeState.trust``).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from shared.prefix import BLOCK_BYTES, MAX_BLOCKS, hash_blocks

__all__ = ["BLOCK_BYTES", "MAX_BLOCKS", "Holders", "PrefixMap", "hash_blocks", "held_blocks"]

from router_node.dispatch.generations import Generations

Hash = Any
"""An integer of 64 bits. Not said to be one, so that the compiled form passes it on as the object that it is."""

_LOST_KEPT: Final = 1024
_FEW: Final = 8


class Holders:
    """The nodes that were sent a run of blocks, by slot. Blocks that follow each other in a prompt share one of these
    for as long as the same nodes hold them, so that one more node is noted once for all of them."""

    __slots__ = ("_members", "blocks", "epoch", "slots")

    def __init__(self, slots: list[int], blocks: int, epoch: int) -> None:
        self.slots = slots
        """In rising order. Not to be changed from outside."""
        self.blocks = blocks
        """Prefixes that share it, or more: those that were forgotten are not taken off."""
        self.epoch = epoch
        self._members: set[int] | None = set(slots) if len(slots) > _FEW else None

    def has(self, slot: int) -> bool:
        """Whether it is one of them."""
        members = self._members
        return slot in self.slots if members is None else slot in members

    def add(self, slot: int) -> None:
        """One more, which is not one of them yet."""
        insort(self.slots, slot)
        if self._members is not None:
            self._members.add(slot)
        elif len(self.slots) > _FEW:
            self._members = set(self.slots)

    def drop(self, slot: int) -> None:
        """One less; who is none of them is nothing."""
        if self.has(slot):
            self.slots.remove(slot)
            if self._members is not None:
                self._members.discard(slot)

    def split(self, blocks: int) -> Holders:
        """The same for so many of its blocks, which from now on have one of their own."""
        self.blocks -= blocks
        return Holders(self.slots.copy(), blocks, self.epoch)


class PrefixMap:
    """Prefix hash -> the nodes that were sent it. About ``limit`` prefixes.

    The epoch moves on with every node whose cache is lost; holders of an older epoch lose the nodes lost since when
    they are next read. So a lost node costs nothing at the time, and its slot can be given to another at once.
    """

    __slots__ = ("_entries", "_epoch", "_lost")

    def __init__(self, limit: int) -> None:
        self._entries: Generations[Holders] = Generations(limit)
        self._epoch = 0
        self._lost: deque[int] = deque(maxlen=_LOST_KEPT)  # slots; the last one began the current epoch

    def __len__(self) -> int:
        """Prefixes remembered."""
        return len(self._entries)

    def match(self, chain: Sequence[Hash]) -> tuple[list[Holders], int]:
        """Holders of the leading blocks of ``chain`` that anyone holds, from the first block on.

        And how many of the leading ones ``insert`` need not renew. Nobody is added, and nothing is kept alive.
        """
        young = self._entries.young.get
        old = self._entries.old.get
        epoch = self._epoch
        found: list[Holders] = []
        fresh = -1
        for key in chain:
            held = young(key)
            if held is None:
                held = old(key)
                if held is None:
                    break
                if fresh < 0:
                    fresh = len(found)
            if held.epoch != epoch:
                self._renew(held)
            if not held.slots:
                break  # nobody is left; to be overwritten, or forgotten with its generation
            found.append(held)
        return found, len(found) if fresh < 0 else fresh

    def insert(self, chain: Sequence[Hash], found: Sequence[Holders], fresh: int, slot: int) -> int:
        """Note that ``slot`` was sent ``chain``; ``found`` and ``fresh`` are what ``match`` has just said of it.

        Returns the number of leading blocks that it was known to hold before.
        """
        depth = len(found)
        count = len(chain)
        known = held_blocks(found, slot) if depth else 0
        first = known if known < fresh else fresh
        if first == count:
            return known
        young = self._entries.young
        before = len(young)
        for at in range(fresh, known):
            young[chain[at]] = found[at]
        at = known
        while at < depth:
            held = found[at]
            end = at + 1
            while end < depth and found[end] is held:
                end += 1
            if held.blocks == end - at:
                if at < fresh:
                    at = fresh if fresh < end else end
            else:
                held = held.split(end - at)  # others' blocks are among them
            held.add(slot)
            while at < end:
                young[chain[at]] = held
                at += 1
        if depth < count:
            held = Holders([slot], count - depth, self._epoch)
            for key in chain[depth:]:
                young[key] = held
        self._entries.settle(len(young) - before)
        return known

    def forget(self, chain: Sequence[Hash], slot: int, start: int = 0) -> None:
        """Take back that ``slot`` was sent the blocks of ``chain`` from ``start`` on."""
        entries = self._entries
        at, count = start, len(chain)
        while at < count:
            held = entries.get(chain[at])
            end = at + 1
            if held is not None and held.has(slot):
                while end < count and entries.get(chain[end]) is held:
                    end += 1
                rest = held if held.blocks == end - at else held.split(end - at)
                rest.drop(slot)
                for key in chain[at:end]:
                    if not rest.slots:
                        entries.discard(key)  # what is remembered has a holder
                    elif rest is not held:
                        entries.put(key, rest)
            at = end

    def lose(self, slot: int) -> None:
        """The cache of ``slot`` is gone (it restarted or left); the slot may be given to another node at once."""
        self._epoch += 1
        self._lost.append(slot)

    def _renew(self, held: Holders) -> None:
        since = self._epoch - held.epoch
        known = since <= len(self._lost)  # else it is too old to say which of them were lost
        lost = [self._lost[-back] for back in range(1, since + 1)] if known else held.slots.copy()
        for slot in lost:
            held.drop(slot)
        held.epoch = self._epoch


def held_blocks(found: Sequence[Holders], slot: int) -> int:
    """How many of the leading blocks ``slot`` holds, of those for which the map has ``found`` holders; at least one.

    Who holds a block holds those before it, so a bisect finds it.
    """
    most = len(found)
    if found[most - 1].has(slot):
        return most
    if not found[0].has(slot):
        return 0
    least = 1
    while least < most:
        middle = (least + most) >> 1
        if found[middle].has(slot):
            least = middle + 1
        else:
            most = middle
    return most
