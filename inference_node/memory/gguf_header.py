"""The head of a GGUF file: metadata and tensor table, without a weight.

Everything in the file is taken as hostile: every length is bounded before it is believed, and what does not add up is a
``GgufError`` of one sentence, never another exception and never a long wait.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
OLDEST, NEWEST = 2, 3
_CHUNK = 1 << 20
_MOST_HEADER = 1 << 28  # the largest vocabularies need a tenth of this
_MOST_PAIRS = 1 << 16
_MOST_TENSORS = 1 << 18
_MOST_STRING = 1 << 24
_MOST_ITEMS = 1 << 22  # of an array
_KEPT_ITEMS = 4096  # arrays longer than this are counted, not kept
_MOST_DEPTH = 3  # arrays in arrays
_MOST_DIMENSIONS = 4
_MOST_ELEMENTS = 1 << 48

# Scalar value types: struct format and bytes.
_SCALARS = {
    0: ("B", 1), 1: ("b", 1), 2: ("<H", 2), 3: ("<h", 2), 4: ("<I", 4), 5: ("<i", 4), 6: ("<f", 4), 7: ("?", 1),
    10: ("<Q", 8), 11: ("<q", 8), 12: ("<d", 8),
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# Tensor types: name, elements of a block, bytes of a block.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}  # fmt: skip


class GgufError(ValueError):
    """The file is no GGUF that can be read: one sentence that says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int  # from the start of the data

    @property
    def elements(self) -> int:
        """Elements in all."""
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count


@dataclass(slots=True)
class GgufHeader:
    """What the head of a file says."""

    version: int
    metadata: dict[str, Any] = field(default_factory=dict)  # long arrays are missing here
    lengths: dict[str, int] = field(default_factory=dict)  # items of every array
    tensors: list[Tensor] = field(default_factory=list)
    data_start: int = 0
    file_size: int = 0

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors; what a type unknown here takes is told by where the next tensor begins."""
        return sum(self.sizes())

    def sizes(self) -> list[int]:
        """Bytes of each tensor, in the table's order."""
        starts = sorted({t.offset for t in self.tensors})
        ends = [*starts[1:], max(self.file_size - self.data_start, 0)]
        following = dict(zip(starts, ends, strict=False))
        out = []
        for tensor in self.tensors:
            known = TYPES.get(tensor.type)
            if known is None:
                out.append(max(following[tensor.offset] - tensor.offset, 0))
            else:
                out.append(-(-tensor.elements // known[1]) * known[2])
        return out


def read(path: Path) -> GgufHeader:
    """The head of the file at ``path``. Raises GgufError; OSError where the file cannot be opened."""
    with path.open("rb") as file:
        size = path.stat().st_size
        try:
            return _parse(_Cursor(file, size), size)
        except GgufError as e:
            raise GgufError(f"{path.name}: {e}") from None


def _parse(cursor: _Cursor, size: int) -> GgufHeader:
    if cursor.take(4) != MAGIC:
        raise GgufError("is no GGUF file: it does not begin with GGUF")
    version = cursor.u32()
    if version > 0xFFFF and not version & 0xFFFF:
        raise GgufError("is big-endian; convert it to the little-endian form")
    if version > NEWEST:
        raise GgufError(f"is GGUF version {version}, newer than what can be read here (versions {OLDEST} and {NEWEST})")
    if version < OLDEST:
        raise GgufError(f"is GGUF version {version}, which is no longer in use; convert it to version {NEWEST}")
    tensors = cursor.count(_MOST_TENSORS, "tensors")
    pairs = cursor.count(_MOST_PAIRS, "metadata keys")
    header = GgufHeader(version, file_size=size)
    for _ in range(pairs):
        key = cursor.string()
        value = _value(cursor, cursor.u32(), key, header, 0)
        if value is not None:
            header.metadata[key] = value
    header.tensors = [_tensor(cursor) for _ in range(tensors)]
    alignment = header.metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise GgufError(f"has an alignment of {alignment!r}, which none can have")
    header.data_start = -(-cursor.position // alignment) * alignment
    _check(header)
    return header


def _value(cursor: _Cursor, kind: int, key: str, header: GgufHeader, depth: int) -> Any:
    """One value; None for an array too long to keep."""
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return struct.unpack(scalar[0], cursor.take(scalar[1]))[0]
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY:
        raise GgufError(f"gives {_clip(key)} a value of type {kind}, which GGUF does not have")
    if depth >= _MOST_DEPTH:
        raise GgufError(f"nests the arrays of {_clip(key)} too deeply")
    kind, length = cursor.u32(), cursor.count(_MOST_ITEMS, f"items of {_clip(key)}")
    if not depth:
        header.lengths[key] = length
    scalar = _SCALARS.get(kind)
    if scalar is not None and length > _KEPT_ITEMS:
        cursor.skip(length * scalar[1])
        return None
    if kind == _STRING and length > _KEPT_ITEMS:
        for _ in range(length):
            cursor.skip_string()
        return None
    items = [_value(cursor, kind, key, header, depth + 1) for _ in range(length)]
    return items if length <= _KEPT_ITEMS else None


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.string()
    dimensions = cursor.u32()
    if dimensions > _MOST_DIMENSIONS:
        raise GgufError(f"gives tensor {_clip(name)} {dimensions} dimensions; {_MOST_DIMENSIONS} are the most")
    shape = tuple(cursor.u64() for _ in range(dimensions))
    tensor = Tensor(name, shape, cursor.u32(), cursor.u64())
    if tensor.elements > _MOST_ELEMENTS:
        raise GgufError(f"gives tensor {_clip(name)} a size that no memory has")
    return tensor


def _check(header: GgufHeader) -> None:
    """Every tensor must lie inside the file. Raises GgufError for the first that does not."""
    room = header.file_size - header.data_start
    for tensor, size in zip(header.tensors, header.sizes(), strict=True):
        if tensor.offset + size > room:
            raise GgufError(
                f"ends before its tensor {_clip(tensor.name)}: {header.file_size:,} bytes are there and "
                f"{header.data_start + tensor.offset + size:,} are needed; fetch it again"
            )


class _Cursor:
    """Reads a file from its start, a chunk at a time, and never past a bound."""

    __slots__ = ("_at", "_before", "_buffer", "_file", "_size")

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = min(size, _MOST_HEADER)
        self._buffer = b""
        self._at = 0
        self._before = 0  # bytes of the file before the buffer

    @property
    def position(self) -> int:
        return self._before + self._at

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._buffer):
            self._fill(count)
            end = self._at + count
        data = self._buffer[self._at : end]
        self._at = end
        return data

    def _fill(self, count: int) -> None:
        if self.position + count > self._size:
            raise GgufError(
                "ends in the middle of its header" if self._size < _MOST_HEADER else "has an endless header"
            )
        rest = self._buffer[self._at :]
        self._before += self._at
        self._at = 0
        self._buffer = rest + self._file.read(max(_CHUNK, count - len(rest)))
        if len(self._buffer) < count:
            raise GgufError("ends in the middle of its header")

    def skip(self, count: int) -> None:
        if self._at + count <= len(self._buffer):
            self._at += count
            return
        while count:
            step = min(count, _CHUNK)
            self.take(step)
            count -= step

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def count(self, most: int, what: str) -> int:
        number = self.u64()
        if number > most:
            raise GgufError(f"claims {number:,} {what}, which no file has")
        return number

    def string(self) -> str:
        return self.take(self._length()).decode("utf-8", "replace")

    def skip_string(self) -> None:
        self.skip(self._length())

    def _length(self) -> int:
        length = self.u64()
        if length > _MOST_STRING:
            raise GgufError(f"holds a string of {length:,} bytes, which no header has")
        return length


def _clip(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 60 else text[:57] + "..."


def as_config(header: GgufHeader) -> dict[str, Any]:
    """The metadata in the words of a ``config.json``, as far as memory depends on it. Raises GgufError."""
    family = header.metadata.get("general.architecture")
    if not isinstance(family, str) or not family:
        raise GgufError("general.architecture is missing, and memory cannot be summed without it")

    def get(name: str) -> Any:
        value = header.metadata.get(f"{family}.{name}")
        return max(value, default=0) if isinstance(value, list) and all(isinstance(v, int) for v in value) else value

    config: dict[str, Any] = {ours: get(theirs) for ours, theirs in _FIELDS.items()}
    config["model_type"] = _FAMILIES.get(family, family)
    config["vocab_size"] = get("vocab_size") or header.lengths.get("tokenizer.ggml.tokens") or _rows(header)
    config["tie_word_embeddings"] = not any(t.name == "output.weight" for t in header.tensors)
    heads, key, value = config["num_attention_heads"], get("attention.key_length"), get("attention.value_length")
    if config["kv_lora_rank"] and isinstance(key, int):
        rope = config["qk_rope_head_dim"]
        config["qk_nope_head_dim"] = max(key - rope, 0) if isinstance(rope, int) else None
        config["v_head_dim"] = value
        if heads:
            config["num_key_value_heads"] = heads
    elif key:
        config["head_dim"] = key
    return {name: entry for name, entry in config.items() if entry is not None}


def _rows(header: GgufHeader) -> int | None:
    find: Callable[[Tensor], bool] = lambda t: t.name == "token_embd.weight" and len(t.shape) == 2  # noqa: E731
    return next((t.shape[1] for t in header.tensors if find(t)), None)


_FIELDS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "full_attention_interval": "full_attention_interval",
}
_FAMILIES = {
    "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text", "deepseek2": "deepseek_v2",
    "command-r": "cohere", "gptneox": "gpt_neox", "gpt-oss": "gpt_oss", "minicpm": "minicpm",
}  # fmt: skip
