"""How the store is dialled: every command has a deadline, and trying again is the caller's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.asyncio import Redis


def connect(url: str, *, timeout: float, connections: int, name: str) -> Redis:
    """A client of a ``redis://``, ``rediss://`` or ``unix://`` URL; it connects at its first command.

    ``timeout`` bounds each command and each dial, in seconds; ``name`` is what the store lists it by.
    """
    # Loaded here: the library is half the cost of a router's start.
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    # A Unix socket knows no keep-alive, and the library refuses the word there.
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        max_connections=connections,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        client_name=name,
        **keepalive,
    )
