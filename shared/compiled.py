"""The two forms of the hot path: C extensions made from the modules below (by mypyc), or those modules themselves.

The sources are the same; the extensions only run faster. They are optional, and made in place by ``make compile`` or
into a wheel by ``pip``; ``setup.py`` has the how. An extension is used only when it was made from exactly the sources
beside it: the name of the library that holds the code carries their digest. Where it does not fit, or where
``LAYA_PLAIN=1`` is set, every module is taken from its source.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MODULES: Final = (
    *(f"router_node/dispatch/{name}.py" for name in (
        "affinity", "buckets", "budget", "cost", "dispatcher", "errors", "explain", "generations", "kv", "learning",
        "outlier", "picker", "pool", "prefix", "queue", "refusals", "registry", "reports", "reservations", "ring",
        "sent", "sessions", "told", "types", "unseen", "waiting",
    )),
    *(f"router_node/relay/{name}.py" for name in (
        "account", "busy_poll", "core", "deadlines", "expiry", "faults", "fields", "flow", "front", "headers", "heads",
        "journal", "local", "methods", "migrate", "moving_stream", "peek", "phases", "poison", "relay_stream",
        "retries", "scan", "track", "trip", "wary_stream", "wire",
    )),
    *(f"router_node/gateway/{name}.py" for name in (
        "asked", "gateway", "http_relay", "moving_relay", "reply", "tunnel", "wary_relay",
    )),
    "router_node/admin/counters.py",
    "shared/numbered.py",
    "shared/prefix.py",
    *(f"shared/net/{name}.py" for name in (
        "align", "backlog", "budget", "client", "conn", "counters", "deadline", "engine", "exchange", "flusher", "fork",
        "gather", "grpc_wire", "http1", "http1_exchange", "http1_known", "http1_llhttp", "http1_parser", "http1_queue",
        "http1_response", "http1_waits", "http2_exchange", "metered", "ngh2_engine", "once", "outflow",
        "server", "splice", "stream", "turns", "untaken", "uploads", "vitals",
    )),
)  # fmt: skip
"""What is compiled, by paths below ``ROOT``."""

_PREFIX: Final = "_hot_"
_PACKAGES: Final = ("router_node", "shared")
_IMPORT: Final = re.compile(rb"^from ((?:router_node|shared)[\w.]*) import ([\w, ]*)", re.MULTILINE)


def digest() -> str:
    """Of everything that the extensions depend on: the sources, and what they import of ours (for its constants)."""
    texts = {name: (ROOT / name).read_bytes() for name in MODULES}
    near: set[str] = set()
    for text in texts.values():
        for package, names in _IMPORT.findall(text):
            path = package.decode().replace(".", "/")
            near.add(f"{path}.py")
            near.update(f"{path}/{name.strip().split(' ')[0]}.py" for name in names.decode().split(","))
    for name in near - texts.keys():
        if (ROOT / name).is_file():
            texts[name] = (ROOT / name).read_bytes()
    total = hashlib.blake2b(digest_size=8)
    for name in sorted(texts):
        total.update(b"%s %d\n" % (name.encode(), len(texts[name])))
        total.update(texts[name])
    return total.hexdigest()


def group(of: str) -> str:
    """Dotted name that mypyc is to give the code made from sources with this digest."""
    return f"shared.{_PREFIX}{of}"


def library(of: str) -> Path:
    """Where that code lies, for the Python that runs."""
    return ROOT / "shared" / f"{_PREFIX}{of}__mypyc{EXTENSION_SUFFIXES[0]}"


def libraries() -> list[Path]:
    """The code that lies there, whatever it was made from, for the Python that runs."""
    return sorted((ROOT / "shared").glob(f"{_PREFIX}*__mypyc{EXTENSION_SUFFIXES[0]}"))


def extensions() -> list[Path]:
    """Every extension among our sources, whatever it was made from and for."""
    return sorted(file for package in _PACKAGES for file in (ROOT / package).rglob("*.so"))


def stale() -> bool:
    """There are extensions, but of other sources than those beside them."""
    found = libraries()
    return bool(found) and library(digest()) not in found


def compiled() -> bool:
    """Whether this process takes the hot path from extensions."""
    return not any(isinstance(finder, _Sources) for finder in sys.meta_path)


def settle() -> None:
    """Choose the form; called by ``shared`` itself, before any of its modules is imported."""
    found = libraries() if os.environ.get("LAYA_PLAIN", "") in ("", "0") else []
    if (not found or library(digest()) not in found) and compiled():
        sys.meta_path.insert(0, _Sources())


class _Sources:
    """Finds the modules above as sources, although there are extensions of the same name."""

    def __init__(self) -> None:
        self._files = {name: ROOT / path for name, path in zip(map(_dotted, MODULES), MODULES, strict=True)}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of one of our modules; None leaves a name to Python's own finders."""
        file = self._files.get(name)
        return spec_from_file_location(name, file) if file is not None else None


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")
