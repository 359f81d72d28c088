"""Hashes of a prompt's beginning, the same for the SDK, the router and the node.

A prompt is cut into blocks of ``BLOCK_BYTES``; the hash of each is seeded with the one before, so one number stands for
all the text up to its end. What is hashed: the UTF-8 text, the serialized chat turns one after another (so that each
turn adds to what was there before), or the packed token ids; the first ``PREFIX_BYTES`` of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import xxhash

if TYPE_CHECKING:
    from shared.pb.laya.v1 import inference_pb2 as pb

BLOCK_BYTES: Final = 512
MAX_BLOCKS: Final = 64
PREFIX_BYTES: Final = BLOCK_BYTES * MAX_BLOCKS


def hash_blocks(data: bytes | bytearray | memoryview, seed: int = 0, limit: int = MAX_BLOCKS) -> tuple[int, ...]:
    """Chained xxh3-64 of the first ``limit`` whole blocks of ``data``; ``seed`` is an unsigned 64-bit number."""
    digest = xxhash.xxh3_64_intdigest
    end = min(len(data) // BLOCK_BYTES, limit) * BLOCK_BYTES
    text = bytes(data[:end])  # a slice of it costs less than a view
    out = []
    for start in range(0, end, BLOCK_BYTES):
        seed = digest(text[start : start + BLOCK_BYTES], seed)
        out.append(seed)
    return tuple(out)


def of_text(text: str) -> tuple[int, ...]:
    """Hashes of a prompt that is text."""
    return hash_blocks(text[:PREFIX_BYTES].encode()[:PREFIX_BYTES])


def of_turns(turns: Iterable[pb.ChatMessage]) -> tuple[int, ...]:
    """Hashes of a prompt that is a conversation."""
    head: list[bytes] = []
    room = PREFIX_BYTES
    for turn in turns:
        raw = turn.SerializeToString()
        head.append(raw)
        room -= len(raw)
        if room <= 0:
            break
    return hash_blocks(b"".join(head)[:PREFIX_BYTES])


def of_ids(ids: pb.TokenIds) -> tuple[int, ...]:
    """Hashes of a prompt that is token ids: their packed bytes, without the field's tag and length."""
    packed = ids.SerializeToString()
    start = 1
    while start < len(packed) and packed[start] & 0x80:
        start += 1
    start += 1
    return hash_blocks(packed[start : start + PREFIX_BYTES])


def to_header(chain: tuple[int, ...]) -> str:
    """The value of ``laya-prefix``: 16 hex digits a block, joined by commas."""
    return ",".join([f"{h:016x}" for h in chain])
