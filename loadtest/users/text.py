"""Text of a known length in tokens, and of known beginnings.

It is made of words of two letters that are one token each, with the space before them, in the tokenizers of the usual
models and in the simulator's. So a prompt of n words has n tokens (a chat template adds a few), and a block id that
comes again is the same text again, which a prefix cache finds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

BLOCK_TOKENS = 512
"""Tokens that one block id of Mooncake's format stands for."""
_WORDS = (
    "of", "to", "in", "is", "it", "on", "as", "at", "by", "we", "or", "an", "be", "he", "so", "no", "up", "my", "me",
    "go", "do", "us", "am", "if",
)  # fmt: skip
_KEPT = 4096


def words(seed: str, count: int) -> str:
    """So many tokens; the same seed gives the same text, and a longer one begins with a shorter."""
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


@lru_cache(maxsize=_KEPT)
def block(number: int, tokens: int = BLOCK_TOKENS) -> str:
    """The text of a block id."""
    return words(f"block {number}", tokens)


def prompt(blocks: Sequence[int], tokens: int, own: str, block_tokens: int = BLOCK_TOKENS) -> str:
    """A prompt of so many tokens that begins with these blocks; what they leave is text of its ``own`` seed.

    The last block is cut where the prompt ends within it.
    """
    parts = []
    left = max(1, tokens)
    for number in blocks:
        if left <= 0:
            break
        text = block(number, block_tokens)
        parts.append(text if left >= block_tokens else text[: 3 * left - 1])
        left -= block_tokens
    if left > 0:
        parts.append(words(own, left))
    return " ".join(parts)
