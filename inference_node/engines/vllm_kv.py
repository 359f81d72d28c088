"""How many KV blocks a sequence takes in a running vLLM, from what its core says of its own cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_node.memory.sequence import BlockGroup, plain, unit, windowed

_WINDOWED = ("sliding_window", "sliding_window_mla")
_STATE = "mamba"
_NOTHING = "encoder_only_attention"


@dataclass(frozen=True, slots=True)
class KvPool:
    """The pool of blocks, for ``EngineInfo``."""

    blocks: int
    """Blocks that requests can use."""
    block_tokens: int
    """Tokens that a block counts for."""
    groups: tuple[BlockGroup, ...]
    """Empty where a sequence takes its tokens in whole blocks."""


def kv_pool(
    metadata: Sequence[Mapping[str, Any]], blocks: int, block_tokens: int, tokens: int, context: int, in_flight: int
) -> KvPool:
    """The pool of an engine.

    ``metadata`` is what ``get_kv_cache_group_metadata`` of vLLM's core answers, ``blocks`` its pool with the null
    block, ``block_tokens`` the size of a block where there are no groups, ``tokens`` what the pool holds by vLLM's own
    count, in sequences of ``context`` tokens; ``in_flight`` are the tokens that may be scheduled and not yet settled.
    """
    groups: list[BlockGroup] = []
    counted = 0  # blocks of a sequence of full length, as vLLM counts them
    states = 0
    alike = Counter((str(g["kind"]), int(g["block_size"]), int(g["sliding_window"] or 0)) for g in metadata)
    for (kind, size, window), copies in alike.items():
        if kind == _NOTHING:
            continue
        if kind == _STATE:
            states += copies
        elif kind in _WINDOWED and window:
            groups.append(windowed(copies, size, window, in_flight))
            counted += copies * (-(-min(window - 1 + in_flight, context) // size) + 1)
        else:
            # What keeps everything; and what is not known keeps no more than everything.
            groups.append(BlockGroup(copies, size))
            counted += copies * -(-context // size)
    if states:
        # What states take shows in what is left of vLLM's own count. A hit in the middle of one of their long blocks
        # is copied first, and for that moment each other group takes one more.
        left = max(states, round(blocks * context / tokens) - counted) if tokens else states
        groups.append(BlockGroup(1, extra=left + sum(group.copies for group in groups)))
    usable = max(blocks - 1, 0)
    if not groups or plain(groups):
        return KvPool(usable, groups[0].block_tokens if groups else block_tokens, ())
    return KvPool(usable, unit(groups, context), tuple(groups))
