"""What a service tells systemd about itself (``sd_notify``)."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Say ``READY=1``, ``STOPPING=1`` or ``MAINPID=…`` where somebody listens for it; elsewhere nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address[0] == "@":
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        sock.send(state.encode())
