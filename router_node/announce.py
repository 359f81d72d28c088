"""The ready line: that the router serves, and where."""

from __future__ import annotations

import contextlib
import logging
import os

import msgspec

from router_node.config import Options
from shared import logging as logs
from shared.compiled import compiled
from shared.config.loader import redact_url
from shared.notify import notify

log = logs.get("router")


class Ready(msgspec.Struct):
    """The line that tells a waiting parent where to find the router."""

    event: str
    address: str
    admin: str
    pid: int


def announce(options: Options, address: str, admin: str) -> None:
    """Say that the router serves: in the log, and on the descriptor where a parent waits."""
    server = options.config.server
    logs.event(
        log,
        logging.INFO,
        "router_ready",
        address=address,
        admin=admin,
        workers=options.config.router.workers,
        store=redact_url(server.redis) or "none",
        keys="required" if options.keys is not None else "none",
        compiled=compiled(),
        pid=os.getpid(),
    )
    notify("READY=1")
    if options.ready_fd >= 0:
        line = msgspec.json.encode(Ready("ready", address, admin, os.getpid())) + b"\n"
        with contextlib.suppress(OSError):  # the parent stopped listening; that is its business
            os.write(options.ready_fd, line)
        with contextlib.suppress(OSError):
            os.close(options.ready_fd)
