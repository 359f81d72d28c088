"""Open files: each connection is one, and a process that has none left can dial no node and read no key file."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_SPARE: Final = 64  # for what is not a client's connection, at least; an eighth of all where that is more


def raise_limit(connections: int) -> None:
    """Ask for as many as so many clients need, as far as this user may: the usual 1,024 are few for a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + max(_SPARE, connections >> 3) + 1
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then it stays as it is, and ``room_for`` says so
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room_for(connections: int) -> int:
    """How many of so many clients can be served with the limit as it is, and some left for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(16, soft - max(_SPARE, soft >> 3)))
