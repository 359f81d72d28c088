"""Requests of a trace, and the bytes that stand for their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shared.prefix import BLOCK_BYTES, PREFIX_BYTES, hash_blocks

BYTES_PER_TOKEN = 4.3
"""Of English prose with the tokenizers of today; no whole number, so that the router has something to learn."""
_KEPT = 4096


class Job:
    """One request. Sizes are tokens, times virtual seconds."""

    __slots__ = (
        "arrived", "asked", "attempt", "blocks", "number", "output", "prompt", "session", "state",
    )  # fmt: skip

    def __init__(
        self, number: int, arrived: float, prompt: int, output: int, asked: int, blocks: tuple[int, ...], session: bytes
    ) -> None:
        self.number = number
        self.arrived = arrived
        self.prompt = prompt
        self.output = output
        """New tokens that will really come."""
        self.asked = asked
        """New tokens asked for (max_tokens)."""
        self.blocks = blocks
        """Ids of the prompt's whole blocks; an id stands for all the text up to its end."""
        self.session = session
        self.attempt = 0
        """Nodes tried."""
        self.state: object = None
        """Its router's."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival."""

    name: str
    block_tokens: int
    """Tokens in one of the prompts' blocks."""
    count: int
    seconds: float
    """Time of the last arrival, or about."""
    jobs: Iterator[Job]


class Prompts:
    """Prefix hashes of prompts, by the code that the gateway and the SDK use, over bytes made up from block ids."""

    __slots__ = ("_bytes", "_known")

    def __init__(self, block_tokens: int) -> None:
        self._bytes = int(block_tokens * BYTES_PER_TOKEN)
        self._known: dict[int, bytes] = {}

    def hashes(self, job: Job) -> tuple[int, ...]:
        """The hashes that come with the request."""
        known, size = self._known, self._bytes
        parts = []
        for key in job.blocks[: PREFIX_BYTES // size + 1]:
            part = known.get(key)
            if part is None:
                if len(known) >= _KEPT:
                    known.clear()
                part = known[key] = _text(key, size)
            parts.append(part)
        whole = b"".join(parts)
        rest = min(int(job.prompt * BYTES_PER_TOKEN), PREFIX_BYTES + BLOCK_BYTES) - len(whole)
        if rest > 0:
            whole += _text(-1 - job.number, rest)
        return hash_blocks(whole[:PREFIX_BYTES])

    @staticmethod
    def bytes_of(job: Job) -> int:
        """Length of the prompt's text."""
        return int(job.prompt * BYTES_PER_TOKEN)


def _text(key: int, size: int) -> bytes:
    word = key.to_bytes(8, "little", signed=True)
    return (word * (size // 8 + 1))[:size]
