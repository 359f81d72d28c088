"""Where a running ``laya up`` is found by the other commands, and files of the user."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shared.config import ConfigError, load

DEFAULT_ADDRESS = "127.0.0.1:8000"
DEFAULT_ADMIN = "127.0.0.1:8001"
_HERE = frozenset(("127.0.0.1", "::1", "localhost", "0.0.0.0", "::"))


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/laya`` or ``~/.cache/laya``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "laya"


def config_dir() -> Path:
    """``$XDG_CONFIG_HOME/laya`` or ``~/.config/laya``."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "laya"


def _states() -> Path:
    """A file for each ``laya up``, named after its process: none can lose another's."""
    return cache_dir() / "up"


def write_state(state: dict[str, Any]) -> None:
    """Say where the cluster of process ``state["pid"]`` is; replaced whole, readable by the user alone."""
    folder = _states()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    pid = int(state["pid"])
    path = folder / f"{pid}.json"
    draft = path.with_suffix(f".{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps({**state, "born": _born(pid)}))
    draft.replace(path)


def clear_state() -> None:
    """Forget the cluster of this process, and those whose process is gone."""
    (_states() / f"{os.getpid()}.json").unlink(missing_ok=True)
    for path in _states().glob("*.json"):
        if path.stem.isdigit() and not _lives(int(path.stem)):
            path.unlink(missing_ok=True)


def running() -> list[dict[str, Any]]:
    """Each ``laya up`` of this user that runs, the oldest process number first: ``pid``, ``address`` and ``admin``."""
    found = (_read(path) for path in _states().glob("*.json"))
    return sorted((state for state in found if state), key=lambda state: int(state["pid"]))


def _read(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text())
        pid = int(state["pid"])
        str(state["address"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return dict(state) if _lives(pid) and state.get("born", "") in ("", _born(pid)) else {}


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _born(pid: int) -> str:
    """When a process began, as the kernel counts: its number may be given to another one later. "" where unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def find(address: str) -> dict[str, Any]:
    """The ``laya up`` that listens at a public address (HOST:PORT, or a port of this machine); empty when none does."""
    clusters = running()
    for same in (str.__eq__, _meets):
        for state in clusters:
            if same(str(state["address"]), address):
                return state
    return {}


def _meets(listens: str, asked: str) -> bool:
    """Whether a connection to ``asked`` comes to who listens at ``listens``, names of this machine being equal."""
    host, _, port = listens.rpartition(":")
    name, _, number = asked.rpartition(":")
    return port == number and host.strip("[]") in _HERE and name.strip("[]").lower() in _HERE | {""}


def _only(key: str, flag: str) -> str:
    """Where the one cluster that runs is; "" when none does. Raises ConfigError when several do."""
    clusters = running()
    if len(clusters) > 1:
        which = ", ".join(str(state["address"]) for state in clusters)
        raise ConfigError(f"several `laya up` run here ({which}); say which with {flag}")
    return str(clusters[0].get(key) or "") if clusters else ""


def address(given: str | None) -> str:
    """Address of the router: a flag, ``LAYA_ADDRESS``, the running ``laya up``, or the default.

    Raises ConfigError when several run.
    """
    return given or os.environ.get("LAYA_ADDRESS") or _only("address", "--address HOST:PORT") or DEFAULT_ADDRESS


def admin_address(given: str | None) -> str:
    """Address of the private listener: a flag, ``LAYA_ADMIN``, the running ``laya up``, or the default.

    A public address (or only its port) of a running ``laya up`` stands for its private one, and ``LAYA_ADDRESS`` names
    one of several. Raises ConfigError when several run and none is named.
    """
    given = given or os.environ.get("LAYA_ADMIN")
    if given:
        known = str(find(given).get("admin") or "")
        if not known and given.isdigit():
            raise ConfigError(f"no `laya up` listens on port {given} here; give --admin as HOST:PORT")
        return known or given
    public = os.environ.get("LAYA_ADDRESS")
    if public and (known := str(find(public).get("admin") or "")):
        return known
    return _only("admin", "--admin HOST:PORT (the address of its router will do)") or DEFAULT_ADMIN


def keys_file(given: str | None, config: str | None) -> Path:
    """The file of API keys: a flag, the configuration's ``server.keys_file``, or the user's own."""
    if given:
        return Path(given)
    named = load(config).server.keys_file
    if not named and config:
        raise ConfigError(f"{config}: names no server.keys_file; set it, or give --file")
    return Path(named) if named else config_dir() / "keys.json"
