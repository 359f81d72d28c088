"""What an engine's prefix cache holds of whose prompts, from what the engine says of its blocks.

An engine names blocks by hashes that mean nothing to anybody else. Each block stored here is remembered with the
request that put it there last and with its place in that request's prompt; so when one is evicted, it can be said how
much of the prompt is still there. Prompts that share blocks share them here too: whoever used them last is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Hash = bytes | int


class CachedPrompts:
    """See the module's docstring. ``evicted(owner, kept_tokens)`` is called for blocks that leave the cache."""

    __slots__ = ("_blocks", "_evicted", "_limit")

    def __init__(self, evicted: Callable[[str, int], None], limit: int) -> None:
        """``limit``: blocks remembered at most. Beyond it something is wrong, and all are forgotten."""
        self._evicted = evicted
        self._limit = max(limit, 1)
        self._blocks: dict[Hash, tuple[str, int, int]] = {}  # owner, first token, token behind the last

    def __len__(self) -> int:
        """Blocks remembered."""
        return len(self._blocks)

    def stored(self, hashes: Iterable[Hash], parent: Hash | None, block_tokens: int, owner: str) -> None:
        """Blocks in a row, behind ``parent`` or at the beginning; ``owner`` is empty for nobody who wants to know.

        Blocks behind one that is not known have no known place, and are left out.
        """
        blocks = self._blocks
        start = 0
        if parent is not None:
            before = blocks.get(parent)
            if before is None:
                return
            start = before[2]
        if len(blocks) >= self._limit:
            self.forget()
        for name in hashes:
            blocks[name] = (owner, start, start + block_tokens)
            start += block_tokens

    def removed(self, hashes: Iterable[Hash]) -> None:
        """Blocks that were evicted."""
        for name in hashes:
            found = self._blocks.pop(name, None)
            if found is not None and found[0]:
                self._evicted(found[0], found[1])

    def cleared(self) -> None:
        """All blocks are gone."""
        for owner in {owner for owner, _, _ in self._blocks.values() if owner}:
            self._evicted(owner, 0)
        self._blocks.clear()

    def forget(self) -> None:
        """What is remembered may be wrong: know nothing, tell nothing."""
        self._blocks.clear()
