"""What a peer has not taken of what was sent to it: the measure of whether it takes anything at all."""

from __future__ import annotations

import sys
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def untaken(transport: asyncio.Transport) -> int:
    """Bytes that the peer has not taken: the transport's, and those that the kernel keeps until they are acknowledged.

    A transport hands on nothing until a third of the kernel's buffer is free, up to megabytes: at a slow peer its own
    count stands still for minutes.
    """
    left: int = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is not None:
        queued = bytearray(4)
        try:
            ioctl(socket.fileno(), TIOCOUTQ, queued)
        except (OSError, ValueError):  # it is being closed
            return left
        left += int.from_bytes(queued, sys.byteorder)
    return left
