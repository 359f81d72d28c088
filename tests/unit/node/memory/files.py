"""Checkpoint files of a test's own: safetensors and GGUF, written by the byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.unit.node.memory.models import llama

SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1}


def safetensors(path: Path, tensors: Mapping[str, tuple[str, int]], *, cut: int = 0) -> int:
    """Write a file with tensors of (type, elements); the bytes of its data. ``cut`` bytes are missing at the end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, count) in tensors.items():
        size = SIZES[kind] * count
        header[name] = {"dtype": kind, "shape": [count], "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(at - cut))
    return at


def folder(path: Path, **config: Any) -> Path:
    """A model's folder with a configuration alone."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(llama(**config)))
    return path


def string(text: str | bytes) -> bytes:
    """A GGUF string."""
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, raw: bytes) -> bytes:
    """A GGUF metadata pair."""
    return string(key) + struct.pack("<I", kind) + raw


def number(key: str, value: int) -> bytes:
    """A pair with a 32-bit number."""
    return pair(key, 4, struct.pack("<I", value))


def words(key: str, values: Sequence[str]) -> bytes:
    """A pair with an array of strings."""
    return pair(key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(string, values)))


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """An entry of the tensor table."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf(pairs: Sequence[bytes], tensors: Sequence[bytes] = (), *, version: int = 3, data: int = 0) -> bytes:
    """A file of these pairs and tensors, with so many bytes of data."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join((*pairs, *tensors))
    return head + bytes(-len(head) % 32) + bytes(data)


def llama_pairs(family: str = "llama", **more: int) -> list[bytes]:
    """The metadata of a small decoder."""
    values = {
        "block_count": 4,
        "embedding_length": 256,
        "feed_forward_length": 512,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "context_length": 8192,
        **more,
    }
    return [pair("general.architecture", 8, string(family)), *(number(f"{family}.{k}", v) for k, v in values.items())]
