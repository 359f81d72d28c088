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

from shared.numbered import Numbered

_SANE: Final = re.compile(rb"[A-Za-z0-9_.:\-]{1,128}").fullmatch


def boot_id() -> str:
    """A name for one start of a process, 16 hex digits."""
    return secrets.token_hex(8)


def default_node_id(port: int) -> str:
    """Host name and port: stable over restarts on a fixed port."""
    return f"{socket.gethostname()}-{port}"


def watcher_id(worker: int = 0) -> str:
    """A name for one router worker and its boot; dispatch ids begin with it."""
    return f"{secrets.token_hex(4)}{os.getpid():x}w{worker}"


def request_ids(prefix: str = "req-") -> Numbered:
    """Makes request ids: ``prefix``, 12 random hex digits of this process, and a counter of at least eight."""
    return Numbered(f"{prefix}{secrets.token_hex(6)}", 8)


def sane_request_id(value: bytes) -> bool:
    """Whether a client's request id may be kept: 1 to 128 characters of A-Z a-z 0-9 _ . : -"""
    return _SANE(value) is not None
