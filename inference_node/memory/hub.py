"""Models of the Hugging Face hub: found in the local cache by its layout, else their small files fetched.

The cache is read without ``huggingface_hub``, whose import takes longer than all the rest; that is imported only where
something has to be fetched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}(?:/[\w.\-]{1,96})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_INDEX = "model.safetensors.index.json"
_ON = ("1", "true", "yes", "on")


class HubError(Exception):
    """The model cannot be had: one sentence."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Small files of a model, now in the local cache."""

    folder: Path
    weights_bytes: int  # by the hub's list of files; 0 where the index tells, or nothing does


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's cache is."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    home = environment.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def cached(name: str, revision: str = "", root: Path | None = None) -> Path | None:
    """The folder in which the local cache keeps a model's files; None where it has no configuration of it."""
    if not _ID.fullmatch(name) or ".." in name or ".." in revision or revision.startswith("/"):
        return None
    folder = (root or cache_root()) / f"models--{name.replace('/', '--')}"
    commit = revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (folder / "refs" / (revision or "main")).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
    if not _COMMIT.fullmatch(commit):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() else None


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the surroundings forbid asking the hub."""
    return any(environment.get(name, "").lower() in _ON for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def fetch(name: str, revision: str = "", *, offline: bool = False) -> Fetched:
    """Bring a model's ``config.json`` and weight index into the local cache. Blocks on the network. Raises HubError."""
    if not _ID.fullmatch(name) or ".." in name:
        raise HubError(f"{name} is no folder, no file and no hub id")
    if offline or is_offline():
        raise HubError(f"{name} is not in the local cache, and asking the hub is switched off")
    try:
        import huggingface_hub
    except ImportError:
        raise HubError(f"{name} is not in the local cache, and huggingface_hub is not installed to fetch it") from None
    return _fetch(huggingface_hub, name, revision or None)


def _fetch(library: Any, name: str, revision: str | None) -> Fetched:
    try:
        config = Path(library.hf_hub_download(name, "config.json", revision=revision))
        listed = library.HfApi().model_info(name, revision=revision, files_metadata=True, timeout=10)
        files = {file.rfilename: int(file.size or 0) for file in listed.siblings or ()}
        if _INDEX in files:
            library.hf_hub_download(name, _INDEX, revision=revision)
            return Fetched(config.parent, 0)
    except Exception as e:  # the library's errors have no common base
        first = " ".join(str(e).split()).partition(". ")[0][:200]
        raise HubError(f"{name} cannot be had from the hub: {first or type(e).__name__}") from None
    sizes = [size for file, size in files.items() if file.endswith(".safetensors") and "/" not in file]
    sizes = sizes or [size for file, size in files.items() if file.endswith(".bin") and "/" not in file]
    return Fetched(config.parent, sum(sizes))
