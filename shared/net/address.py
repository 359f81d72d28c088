"""Addresses: where to dial, and who is at the other end."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Final

_NO_LINGER: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to dial: a Unix socket, or host and port."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """From ``host:port``, ``[v6]:port`` or ``unix:/path``; ValueError says what is wrong."""
        if text.startswith("unix:"):
            if len(text) == len("unix:"):
                raise ValueError(f"address {text!r} names no path; write unix:/path/of/the/socket")
            return cls(path=text[len("unix:") :])
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        name = host[1:-1] if bracketed else host
        if not colon or not name or (":" in name and not bracketed):
            raise ValueError(f"address {text!r} must be host:port, [IPv6]:port or unix:/path")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"address {text!r} needs a port from 1 to 65535")
        return cls(host=name, port=int(port))


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Address of the other side, for logs."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and len(name) >= 2:
        return f"[{name[0]}]:{name[1]}" if ":" in str(name[0]) else f"{name[0]}:{name[1]}"
    return "unix"


def tear(transport: asyncio.Transport) -> None:
    """Cut a connection off by a TCP reset: the other side sees that what it has is not all."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
