"""Finds a model and says what memory its weights take, without reading one.

A model is a folder with ``config.json`` (and safetensors, or older .bin files), a GGUF file, or a hub id. A hub id is
looked up in the local cache first; where it is not there and asking is allowed, its configuration and weight index
alone are fetched.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from inference_node.memory import hub
from inference_node.memory.known import known, nearest
from inference_node.memory.shapes import Shape, ShapeError, Weights, from_config

_MOST_JSON = 64 << 20  # bytes of a configuration or an index
_MOST_HEADER = 100_000_000  # bytes; the format's own bound
_READ_BUDGET = 16 << 20  # bytes of headers read for their types; beyond it sizes alone are taken
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_PLAIN = re.compile(r"[\w.\-]{1,96}")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WIDE = {"F64": 8, "F32": 4}


class CheckpointError(Exception):
    """There is no such model, or its files are not what they should be: one sentence."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model found."""

    shape: Shape
    weights: Weights
    path: Path | None  # None for a well-known name
    form: str  # "safetensors", "bin", "gguf" or "shape"


def find(model: str, revision: str = "", *, offline: bool = False) -> Checkpoint:
    """The model that ``model`` names: a path, a well-known name, or a hub id with an optional @revision.

    Raises CheckpointError, and ShapeError where the configuration says too little.
    """
    try:
        return _find(model, revision, offline)
    except OSError as e:
        raise CheckpointError(f"{e.filename or model} cannot be read: {e.strerror or e}") from None


def _find(model: str, revision: str, offline: bool) -> Checkpoint:
    path = Path(os.path.expanduser(model))
    if path.is_file():
        return _gguf(path) if path.suffix.lower() == ".gguf" else _folder(path.parent)
    if path.is_dir():
        return _folder(path)
    if path.is_absolute() or model.startswith(("./", "../", "~")) or model.lower().endswith(".gguf"):
        raise CheckpointError(f"{model} does not exist; name a folder with config.json, a GGUF file or a hub id")
    name, _, named = model.partition("@")
    cached = hub.cached(name, revision or named)
    if cached is not None:
        return replace(_folder(cached, partial=True), path=cached)
    shape = known(name)
    if shape is not None:
        return Checkpoint(shape, Weights(0, source="its published shape"), None, "shape")
    if "/" not in name and _PLAIN.fullmatch(name):
        hint = _hint(name) or "; name a folder with config.json, a GGUF file or a hub id"
        raise CheckpointError(f"{name} is no folder, no file and no well-known model{hint}")
    try:
        fetched = hub.fetch(name, revision or named, offline=offline)
    except hub.HubError as e:
        raise CheckpointError(f"{e}{_hint(name)}") from None
    found = _folder(fetched.folder, partial=True)
    if not found.weights.stored and fetched.weights_bytes:
        found = replace(found, weights=Weights(fetched.weights_bytes, source="the hub's list of files"))
    return found


def _hint(name: str) -> str:
    close = nearest(name)
    return f"; well-known names like it are {', '.join(close)}" if close else ""


def _folder(folder: Path, *, partial: bool = False) -> Checkpoint:
    """A model in a folder. ``partial``: weights that are not there yet are no fault."""
    if not (folder / "config.json").is_file():
        return _gguf_folder(folder)
    config = read_json(folder / "config.json")
    shape = from_config(config, folder.name if not partial else _cached_name(folder))
    shape = _shorter(shape, folder)
    weights, form = _weights(folder, partial)
    if form == "safetensors" and not shape.quantization:
        weights = _widths(folder, weights)
    if shape.dtype_bytes > 2 and not shape.quantization and not weights.wide:
        weights = replace(weights, wide=weights.stored)  # there were no headers to tell
    return Checkpoint(shape, weights, folder, form)


def _gguf_folder(folder: Path) -> Checkpoint:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf")
    first = [p for p in files if (found := _SHARD.search(p.name)) is None or found[1] == "00001"]
    if not first:
        raise CheckpointError(f"{folder} has no config.json and no GGUF file; name the folder of a model")
    if len(first) > 1:
        raise CheckpointError(f"{folder} has {len(first)} GGUF files; name one of them, such as {first[0].name}")
    return _gguf(first[0])


def _cached_name(folder: Path) -> str:
    """The hub id that a folder of the cache belongs to."""
    owner = folder.parent.parent.name
    return owner.removeprefix("models--").replace("--", "/") if owner.startswith("models--") else folder.name


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a bounded size. Raises CheckpointError."""
    try:
        size = path.stat().st_size
        if size > _MOST_JSON:
            raise CheckpointError(f"{path} has {size:,} bytes, far more than such a file has")
        value = msgspec.json.decode(path.read_bytes())
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CheckpointError(f"{path} is not valid JSON ({e}); fetch the model again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; fetch the model again")
    return value


def _shorter(shape: Shape, folder: Path) -> Shape:
    """A tokenizer that ends earlier than the model bounds the context."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return shape
    try:
        limit = read_json(path).get("model_max_length")
    except CheckpointError:
        return shape
    if isinstance(limit, int | float) and not isinstance(limit, bool) and 1 <= limit < shape.max_context:
        return replace(shape, max_context=int(limit))
    return shape


def _weights(folder: Path, partial: bool) -> tuple[Weights, str]:
    for name in _INDEXES:
        if (folder / name).is_file():
            return _indexed(folder, name, partial), "bin" if ".bin." in name else "safetensors"
    files = _safetensors(folder)
    if files:
        return Weights(sum(_data_bytes(f) for f in files), source=_files(len(files))), "safetensors"
    files = sorted(folder.glob("*.bin"))
    if files:
        return Weights(sum(f.stat().st_size for f in files), source=_files(len(files))), "bin"
    if partial:
        return Weights(0, source="its shape; no weights are here yet"), "shape"
    return Weights(0, source="its shape; the folder has no weights"), "shape"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _safetensors(folder: Path) -> list[Path]:
    """The weight files, less a second copy in one piece that some repositories carry."""
    files = sorted(folder.glob("*.safetensors"))
    return [f for f in files if not f.name.startswith("consolidated")] or files


def _indexed(folder: Path, name: str, partial: bool) -> Weights:
    index = read_json(folder / name)
    table = index.get("weight_map")
    if not isinstance(table, Mapping) or not all(isinstance(v, str) for v in table.values()):
        raise CheckpointError(f"{folder / name} has no weight_map; fetch the model again")
    shards = sorted(set(table.values()))
    if any("/" in shard or shard.startswith(".") for shard in shards):
        raise CheckpointError(f"{folder / name} names files outside its folder")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if not missing:
        sizes = (_data_bytes(folder / s) if s.endswith(".safetensors") else (folder / s).stat().st_size for s in shards)
        return Weights(sum(sizes), source=_files(len(shards)))
    if not partial:
        rest = f" and {len(missing) - 1} more are missing" if len(missing) > 1 else " is missing"
        raise CheckpointError(f"{folder}: {missing[0]}{rest}; fetch the model again")
    meta = index.get("metadata")
    total = meta.get("total_size") if isinstance(meta, Mapping) else None
    known_total = isinstance(total, int | float) and not isinstance(total, bool) and 0 < total < 1 << 50
    return Weights(int(total) if known_total and total is not None else 0, source="the weight index")


def _data_bytes(path: Path) -> int:
    """Bytes of a safetensors file's tensors: all but its header. Raises CheckpointError for a file that is none."""
    size = path.stat().st_size
    return size - 8 - _header_bytes(path, size)


def _header_bytes(path: Path, size: int) -> int:
    with path.open("rb") as file:
        head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if not 2 <= length <= _MOST_HEADER or length + 8 > size:
        raise CheckpointError(f"{path} is no safetensors file, or only a part of one; fetch it again")
    return int(length)


def _widths(folder: Path, weights: Weights) -> Weights:
    """How much of the weights is stored wider than it will be held, by the files' headers."""
    index = folder / _INDEXES[0]
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        files = [folder / n for n in names if (folder / n).is_file()]
    else:
        files = _safetensors(folder)
    wide, budget = 0, _READ_BUDGET
    for path in files:
        size = path.stat().st_size
        length = _header_bytes(path, size)
        budget -= length
        if budget < 0:
            break
        wide += _wide_bytes(path, length, size)
    return replace(weights, wide=wide)


def _wide_bytes(path: Path, length: int, size: int) -> int:
    """Bytes of a file's 32- and 64-bit tensors. Raises CheckpointError where the header and the file disagree."""
    with path.open("rb") as file:
        raw = file.read(8 + length)[8:]
    wide = end = 0
    try:
        for name, entry in msgspec.json.decode(raw, type=dict[str, Any]).items():
            if name == "__metadata__":
                continue
            start, stop = entry["data_offsets"]
            if not 0 <= start <= stop:
                raise ValueError("offsets")
            end = max(end, stop)
            wide += stop - start if entry["dtype"] in _WIDE else 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError, KeyError):
        raise CheckpointError(f"{path} has a header that makes no sense; fetch it again") from None
    if end + 8 + length > size:
        raise CheckpointError(f"{path} has {size:,} bytes and should have {end + 8 + length:,}; fetch it again")
    return wide


def _gguf(path: Path) -> Checkpoint:
    """A GGUF file, with its further parts where it is cut up."""
    from inference_node.memory import gguf_header  # not needed by most, and not quick to load

    try:
        header = gguf_header.read(path)
        shape = from_config(gguf_header.as_config(header), path.stem)
        total, parts = header.weights_bytes, 1
        found = _SHARD.search(path.name)
        if found is not None:
            parts = int(found[2])
            for number in range(2, parts + 1):
                part = path.with_name(path.name[: found.start()] + f"-{number:05}-of-{found[2]}.gguf")
                total += gguf_header.read(part).weights_bytes
    except gguf_header.GgufError as e:
        raise CheckpointError(str(e)) from None
    except ShapeError as e:
        raise ShapeError(str(e).replace("config.json", path.name)) from None
    bits = total * 8 / shape.params if shape.params else 0.0
    shape = replace(shape, quantization="gguf", bits=round(bits, 2))
    return Checkpoint(shape, Weights(total, source=_files(parts)), path, "gguf")
