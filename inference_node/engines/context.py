"""What an engine's own application tells the node about the request it is running.

The tunnel sees only bytes: a non-streamed answer shows none before its end, and its share of the prefill budget would
be held for the whole decode. So the tunnel leaves a callback in the context of the application's task, and the engine
calls ``signal_first_token`` when the request has its first token.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

first_token: ContextVar[Callable[[], None] | None] = ContextVar("laya_first_token", default=None)


def signal_first_token() -> None:
    """Say that the current request has its first token. Idempotent, cheap, a no-op where nobody listens."""
    listener = first_token.get()
    if listener is not None:
        listener()
