"""How many KV blocks one sequence takes, as the ledger needs to know it: the sum over groups of layers.

Most models have one group, and a sequence takes its tokens in whole blocks. Models with windows or states have several
that share one pool of blocks, and there a short sequence takes more blocks for its tokens than a long one. ``unit`` is
what a block then counts for in tokens, so that capacity and headroom can be said in tokens at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """``copies`` alike groups of layers; the fields of ``laya.v1.KvGroup``."""

    copies: int = 1
    block_tokens: int = 0
    """Tokens of one block; 0 where length does not matter (a state)."""
    most: int = 0
    """Blocks at most, for layers with a window; 0 for no bound."""
    extra: int = 0
    """Blocks beside those, whatever the length."""

    def blocks(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens takes at most, in all copies."""
        own = -(-tokens // self.block_tokens) if self.block_tokens else 0
        if self.most and own > self.most:
            own = self.most
        return self.copies * (own + self.extra)


def windowed(copies: int, block_tokens: int, window: int, in_flight: int) -> BlockGroup:
    """Layers that keep a window and what is in flight, and one block more because a window begins inside one.

    A sequence that is not longer than that takes its tokens in whole blocks.
    """
    return BlockGroup(copies, block_tokens, -(-(window - 1 + in_flight) // block_tokens) + 1)


def sequence_blocks(groups: Sequence[BlockGroup], tokens: int) -> int:
    """Blocks of the pool that one sequence takes at most."""
    return sum(group.blocks(tokens) for group in groups)


def plain(groups: Sequence[BlockGroup]) -> bool:
    """Whether a sequence takes its tokens in whole blocks and nothing else."""
    return len(groups) == 1 and groups[0] == BlockGroup(1, groups[0].block_tokens) and groups[0].block_tokens > 0


def unit(groups: Sequence[BlockGroup], context: int) -> int:
    """Tokens that a block counts for: those of a sequence of ``context`` tokens, spread over its blocks."""
    return max(1, context // max(1, sequence_blocks(groups, context)))
