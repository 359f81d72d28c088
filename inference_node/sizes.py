"""How many KV blocks a request takes, and which requests no node of this size can ever serve. Pure."""

from __future__ import annotations

from inference_node.lanes import Need
from inference_node.lengths import Overcommit
from inference_node.memory import Ledger
from shared.errors import invalid


class Sizes:
    """Sums in whole blocks, for each prompt and each sequence of a request."""

    __slots__ = ("_ledger", "_max_seq_len", "overcommit")

    def __init__(self, ledger: Ledger, max_seq_len: int, overcommit: Overcommit | None) -> None:
        self._ledger = ledger
        self._max_seq_len = max_seq_len
        self.overcommit = overcommit

    def most(self, need: Need) -> int:
        """What it may need at most. Raises INVALID_ARGUMENT for a request that can never be served."""
        ledger = self._ledger
        longest = max(need.prompts)
        if longest + need.max_new_tokens > self._max_seq_len:
            raise invalid(
                f"the prompt has {longest} tokens and max_tokens asks for {need.max_new_tokens} more; the context is "
                f"{self._max_seq_len} tokens; shorten the prompt or lower max_tokens",
                "max_tokens" if longest < self._max_seq_len else "prompt",
                "CONTEXT_TOO_LONG",
            )
        blocks = sum(ledger.blocks_for(prompt, need.max_new_tokens, need.n) for prompt in need.prompts)
        if blocks > ledger.capacity_blocks:
            raise invalid(
                f"the request needs {blocks * ledger.block_tokens} tokens of KV cache for {need.sequences} sequences; "
                f"this node has {ledger.capacity_tokens}; lower n, max_tokens or the prompt",
                "n" if need.sequences > 1 else "max_tokens",
                "NEVER_FITS",
            )
        return blocks

    def hold(self, need: Need) -> int:
        """What to hold for it: all that it may need, or with over-commit what it is expected to. Raises as ``most``."""
        blocks, overcommit, asked = self.most(need), self.overcommit, need.max_new_tokens
        if overcommit is None or not asked:
            return blocks
        ledger = self._ledger
        return sum(ledger.blocks_for(p, overcommit.new_tokens(p, asked), need.n) for p in need.prompts)

    def engine_has_room(self, need: Need) -> bool:
        """Whether the engine can begin it now, where holds do not promise that."""
        if self.overcommit is None:
            return True
        return self.overcommit.has_room(sum(self._ledger.blocks_for(prompt, 1, need.n) for prompt in need.prompts))
