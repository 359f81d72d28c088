"""How many KV blocks a sequence takes on a node whose layers keep their KV in different ways."""

from __future__ import annotations

from typing import NamedTuple


class KvGroup(NamedTuple):
    """Layers that keep their KV alike; the fields of ``laya.v1.KvGroup``."""

    copies: int
    block_tokens: int
    most_blocks: int
    extra_blocks: int

    def blocks(self, tokens: int) -> int:
        """KV blocks that a sequence of so many tokens takes for them."""
        own = -(-tokens // self.block_tokens) if self.block_tokens else 0
        if self.most_blocks and own > self.most_blocks:
            own = self.most_blocks
        return self.copies * (own + self.extra_blocks)
