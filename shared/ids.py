"""Identifiers: request ids, boot ids, node ids.

Request ids are made on the hot path, so they come from one random prefix per process and a counter: unique, cheap
(no system call), and short enough for a log line.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from typing import Final

_SANE: Final = re.compile(rb"[A-Za-z0-9_.:\-]{1,128}").fullmatch
_DIGITS: Final = tuple(b"%02x" % low for low in range(256))


def boot_id() -> str:
    """A name for one start of a process, 16 hex digits."""
    return secrets.token_hex(8)


def default_node_id(port: int) -> str:
    """Host name and port: stable over restarts on a fixed port."""
    return f"{socket.gethostname()}-{port}"


def watcher_id(worker: int = 0) -> str:
    """A name for one router worker and its boot; dispatch ids begin with it."""
    return f"{secrets.token_hex(4)}{os.getpid():x}w{worker}"


class RequestIds:
    """Makes request ids: ``prefix``, 12 random hex digits of this process, and a counter of at least eight."""

    __slots__ = ("_block", "_count", "_head")

    def __init__(self, prefix: str = "req-") -> None:
        self._head = f"{prefix}{secrets.token_hex(6)}"
        self._block = b""  # all but the last two digits
        self._count = 0

    def make(self) -> bytes:
        """The next one."""
        self._count = count = self._count + 1
        low = count & 0xFF
        if not low or not self._block:
            self._block = f"{self._head}{count >> 8:06x}".encode()
        return self._block + _DIGITS[low]


def sane_request_id(value: bytes) -> bool:
    """Whether a client's request id may be kept: 1 to 128 characters of A-Z a-z 0-9 _ . : -"""
    return _SANE(value) is not None
