"""The ledger of KV blocks a node has promised.

An admitted request holds whole blocks for all it may ever need, prompt and growth, until it ends. What is promised
never exceeds what the engine has, so a running request always finds its next block and nothing is preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference_node.memory.sequence import BlockGroup, sequence_blocks


class LedgerFull(Exception):
    """A hold was asked for that does not fit now: the caller did not check ``fits`` first."""


class Hold:
    """Blocks promised to one request; they return to the ledger once, however often ``release`` is called."""

    __slots__ = ("_ledger", "blocks")

    def __init__(self, ledger: Ledger, blocks: int) -> None:
        self._ledger: Ledger | None = ledger
        self.blocks = blocks

    @property
    def released(self) -> bool:
        """Whether the blocks have gone back."""
        return self._ledger is None

    def release(self) -> bool:
        """Give the blocks back; False when that was done before."""
        ledger = self._ledger
        if ledger is None:
            return False
        self._ledger = None
        ledger._give_back(self.blocks)
        return True


class Ledger:
    """Counts held blocks against a capacity. ``on_release`` runs after each release."""

    __slots__ = (
        "block_tokens",
        "capacity_blocks",
        "groups",
        "held_blocks",
        "holds",
        "lookahead_tokens",
        "on_release",
        "sequence_tokens",
    )

    def __init__(
        self,
        capacity_blocks: int,
        block_tokens: int,
        lookahead_tokens: int = 0,
        sequence_tokens: int = 0,
        groups: Sequence[BlockGroup] = (),
    ) -> None:
        """``capacity_blocks`` leaves out what the engine keeps for itself (vLLM's null block).

        ``lookahead_tokens`` is what a running sequence may need beside its own tokens (speculative decoding);
        ``sequence_tokens`` is where the engine stops to give one more, lookahead or not (0: nowhere). With ``groups`` a
        sequence takes what they say, and ``block_tokens`` is only what a block counts for in tokens.
        """
        if capacity_blocks < 1 or block_tokens < 1 or lookahead_tokens < 0 or sequence_tokens < 0:
            raise ValueError("a ledger needs at least one block of at least one token")
        self.capacity_blocks = capacity_blocks
        self.block_tokens = block_tokens
        self.lookahead_tokens = lookahead_tokens
        self.sequence_tokens = sequence_tokens
        self.groups = tuple(groups)
        self.held_blocks = 0
        self.holds = 0
        self.on_release: Callable[[], None] | None = None

    def blocks_for(self, prompt_tokens: int, max_new_tokens: int, n: int = 1) -> int:
        """Whole blocks that ``n`` sequences need over one prompt; a prompt's last block is never shared."""
        tokens = prompt_tokens + max_new_tokens
        if self.lookahead_tokens:
            ahead = tokens + self.lookahead_tokens
            tokens = max(tokens, min(ahead, self.sequence_tokens)) if self.sequence_tokens else ahead
        if self.groups:
            return n * sequence_blocks(self.groups, tokens)
        return n * -(-tokens // self.block_tokens)

    def fits(self, blocks: int) -> bool:
        """Whether a hold of so many blocks can be given now."""
        return self.held_blocks + blocks <= self.capacity_blocks

    def hold(self, blocks: int) -> Hold:
        """Promise blocks. Raises LedgerFull when they are not free, ValueError for fewer than one."""
        if blocks < 1:
            raise ValueError(f"a hold needs at least one block, not {blocks}")
        if not self.fits(blocks):
            raise LedgerFull(f"{blocks} blocks asked for, {self.free_blocks} free")
        self.held_blocks += blocks
        self.holds += 1
        return Hold(self, blocks)

    @property
    def free_blocks(self) -> int:
        """Blocks that are not promised."""
        return self.capacity_blocks - self.held_blocks

    @property
    def capacity_tokens(self) -> int:
        """Capacity in tokens."""
        return self.capacity_blocks * self.block_tokens

    @property
    def headroom_tokens(self) -> int:
        """Capacity minus holds, in tokens."""
        return self.free_blocks * self.block_tokens

    def _give_back(self, blocks: int) -> None:
        self.held_blocks -= blocks
        self.holds -= 1
        if self.on_release is not None:
            self.on_release()
