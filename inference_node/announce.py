"""Lines for a waiting parent: the port is bound, the node serves."""

from __future__ import annotations

import contextlib
import os

import msgspec


class Announcer:
    """Writes JSON lines to a descriptor that the parent reads; with a negative one it says nothing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def listening(self, address: str) -> None:
        """The port is bound; the model is still loading."""
        self._write({"event": "listening", "address": address, "pid": os.getpid()})

    def ready(self, address: str, node_id: str, model: str, engine: str) -> None:
        """The node serves. The descriptor is closed: nothing more is said."""
        line = {"event": "ready", "address": address, "node_id": node_id, "model": model, "engine": engine}
        self._write({**line, "pid": os.getpid()})
        self.close()

    def close(self) -> None:
        """Say no more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _write(self, line: dict[str, object]) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the parent stopped listening; that is its business
                os.write(self._fd, msgspec.json.encode(line) + b"\n")
