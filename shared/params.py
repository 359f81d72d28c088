"""Sampling parameters that a router may set or bound, by the names of OpenAI bodies, which are ours too."""

from __future__ import annotations

from typing import Final

WHOLE: Final = frozenset(("max_tokens", "top_k", "n", "min_tokens", "priority", "logprobs"))
REAL: Final = frozenset(
    ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
)
