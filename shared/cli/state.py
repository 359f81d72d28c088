"""Where a running ``laya up`` is found by the other commands, and files of the user."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shared.config import ConfigError, load

DEFAULT_ADDRESS = "127.0.0.1:8000"
DEFAULT_ADMIN = "127.0.0.1:8001"


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/laya`` or ``~/.cache/laya``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "laya"


def config_dir() -> Path:
    """``$XDG_CONFIG_HOME/laya`` or ``~/.config/laya``."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "laya"


def _state_path() -> Path:
    return cache_dir() / "up.json"


def write_state(state: dict[str, Any]) -> None:
    """Say where the running cluster is; replaced whole, readable by the user alone."""
    path = _state_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(state))
    draft.replace(path)


def clear_state() -> None:
    """Forget the cluster, if it is the one of this process."""
    if read_state().get("pid") == os.getpid():
        _state_path().unlink(missing_ok=True)


def read_state() -> dict[str, Any]:
    """The running ``laya up``, or nothing when its process is gone."""
    try:
        state = json.loads(_state_path().read_text())
        os.kill(int(state["pid"]), 0)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(state)


def address(given: str | None) -> str:
    """Address of the router: a flag, ``LAYA_ADDRESS``, the running ``laya up``, or the default."""
    return given or os.environ.get("LAYA_ADDRESS") or read_state().get("address") or DEFAULT_ADDRESS


def admin_address(given: str | None) -> str:
    """Address of the private listener: a flag, ``LAYA_ADMIN``, the running ``laya up``, or the default."""
    return given or os.environ.get("LAYA_ADMIN") or read_state().get("admin") or DEFAULT_ADMIN


def keys_file(given: str | None, config: str | None) -> Path:
    """The file of API keys: a flag, the configuration's ``server.keys_file``, or the user's own."""
    if given:
        return Path(given)
    named = load(config).server.keys_file
    if not named and config:
        raise ConfigError(f"{config}: names no server.keys_file; set it, or give --file")
    return Path(named) if named else config_dir() / "keys.json"
