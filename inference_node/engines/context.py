"""What an engine's own application tells the node about the request it is running.

The tunnel sees only bytes: a non-streamed answer shows none before its end, and its share of the prefill budget would
be held for the whole decode, and how much of its prompt was cached it tells the client at best. So the tunnel leaves a
callback in the context of the application's task, and the engine calls ``signal_first_token`` when a prompt of the
request has its first token. ``dispatch`` is the router's id of the request, for an engine that tells who filled its
cache.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

first_token: ContextVar[Callable[[int], None] | None] = ContextVar("laya_first_token", default=None)
dispatch: ContextVar[str] = ContextVar("laya_dispatch", default="")


def signal_first_token(cached_tokens: int) -> None:
    """Say that a prompt of the current request has its first token, once for each; a no-op where nobody listens."""
    listener = first_token.get()
    if listener is not None:
        listener(cached_tokens)
