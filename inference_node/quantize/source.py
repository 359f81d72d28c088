"""What is to be quantized: finds the checkpoint in a path, or says why it cannot be one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_node.quantize.schemes import QuantizeError

# Every file a tokenizer of the usual families may consist of; copied as they are, so that nothing is lost.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
)
_VOCABULARIES = frozenset(
    {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json"}
)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint on disk. ``gguf`` is the file's name inside ``folder``, or None for safetensors."""

    folder: Path
    gguf: str | None
    size: int
    """Bytes of the weight files."""
    tokenizer_files: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return str(self.folder / self.gguf) if self.gguf else str(self.folder)


def locate(path: Path) -> Source:
    """Find the checkpoint that ``path`` names: a GGUF file, or a folder. Raises QuantizeError."""
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        raise QuantizeError(f"{path} does not exist; name a GGUF file or a folder with config.json and safetensors")
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.suffix == ".safetensors":
        return _in_folder(path.parent)
    raise QuantizeError(f"{path} is neither a GGUF nor a safetensors file; name a checkpoint in one of these formats")


def _gguf(path: Path) -> Source:
    split = _SPLIT.search(path.name)
    if split and int(split.group(2)) > 1:
        raise QuantizeError(f"{path} is one of {int(split.group(2))} parts; merge them into one GGUF file first")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise QuantizeError(f"{path} does not begin as a GGUF file does; it may be damaged, so fetch it again")
    return Source(path.parent, path.name, path.stat().st_size)


def _in_folder(folder: Path) -> Source:
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        found = sorted(folder.glob("*.gguf"))
        if len(found) == 1:
            return _gguf(found[0])
        if found:
            names = ", ".join(p.name for p in found[:8])
            raise QuantizeError(f"{folder} holds several GGUF files ({names}); name the one to quantize")
        raise QuantizeError(f"{folder} holds no *.safetensors and no *.gguf; name a folder with a checkpoint")
    config = _read_config(folder)
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "unknown")
        raise QuantizeError(f"{folder} is quantized already ({method}); start from its 16-bit checkpoint")
    _check_shards(folder)
    present = tuple(name for name in _TOKENIZER_FILES if (folder / name).is_file())
    if not _VOCABULARIES.intersection(present):
        raise QuantizeError(f"{folder} holds no tokenizer (tokenizer.json or tokenizer.model); copy it there first")
    return Source(folder, None, sum(p.stat().st_size for p in weights), present)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise QuantizeError(f"{path} is missing; a folder of safetensors needs its config.json") from None
    except ValueError as e:
        raise QuantizeError(f"{path} is not valid JSON ({e}); fetch it again") from None
    if not isinstance(config, dict):
        raise QuantizeError(f"{path} is not a JSON object; fetch it again")
    return config


def _check_shards(folder: Path) -> None:
    """Refuse a checkpoint whose index names a shard that is not there, before an hour of work."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        named = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise QuantizeError(f"{index} cannot be read as an index of shards; fetch it again") from None
    missing = sorted(name for name in named if not (folder / str(name)).is_file())
    if missing:
        raise QuantizeError(f"{folder} lacks {len(missing)} of its {len(named)} shards, {missing[0]} first; fetch them")
