"""What an engine's own application and the node tell each other about the request it is running.

The tunnel sees only bytes: a non-streamed answer shows none before its end, and its share of the prefill budget would
be held for the whole decode, and how much of its prompt was cached it tells the client at best. So the tunnel leaves a
callback in the context of the application's task, and the engine calls ``signal_first_token`` when a prompt of the
request has its first token. ``dispatch`` is the router's id of the request, for an engine that tells who filled its
cache. ``pulled`` is told of each delta that the application takes; ``past`` is what the client has of the answer
already, and reaches the engine through the application in this way alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol

from inference_node.engines.base import Past


class Pulled(Protocol):
    """Who is to know what the application has taken."""

    def tell(self, token_ids: Sequence[int], finish_reason: str) -> None:
        """The application takes these tokens, together."""

    def pin(self, why: str) -> None:
        """The engine cannot take this answer up elsewhere after all: a few words."""

    def died(self) -> None:
        """The engine is dead: what the application says from now on is only its excuse."""


first_token: ContextVar[Callable[[int], None] | None] = ContextVar("laya_first_token", default=None)
dispatch: ContextVar[str] = ContextVar("laya_dispatch", default="")
pulled: ContextVar[Pulled | None] = ContextVar("laya_pulled", default=None)
past: ContextVar[Past | None] = ContextVar("laya_past", default=None)


def signal_first_token(cached_tokens: int) -> None:
    """Say that a prompt of the current request has its first token, once for each; a no-op where nobody listens."""
    listener = first_token.get()
    if listener is not None:
        listener(cached_tokens)
