"""Requests that nodes die of: two nodes in a row without a single new token, and the request is refused for a while.

Otherwise one request that crashes an engine would take node after node with it. What is remembered is a hash of the
request, for a bounded time, and of a bounded number of them. A request that gets a token, or any answer,
is innocent and forgotten; many that are the same and were on one node together are one death.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import xxhash

from shared.errors import Code, LayaError

DEATHS: Final = 2
# A node that ends a request with one of these is not shown to have lived through it.
_DOUBTFUL: Final = frozenset((
    Code.CANCELLED, Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.UNAVAILABLE,
    Code.DATA_LOSS,
))  # fmt: skip
MOST: Final = 1024  # requests remembered


class Poisons:
    """``seconds`` is how long a death is remembered; ``clock`` gives monotonic seconds."""

    __slots__ = ("_clock", "_deaths", "_seconds")

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._deaths: dict[int, tuple[float, tuple[str, ...]]] = {}  # until when, and which nodes

    def __len__(self) -> int:
        """Requests remembered; while there are none, there is nothing to ask."""
        return len(self._deaths)

    def died(self, request: bytes, node_id: str) -> bool:
        """A node died and had given this request nothing new. Whether that was one death too many."""
        now = self._clock()
        key = xxhash.xxh3_64_intdigest(request)
        until, nodes = self._deaths.pop(key, (0.0, ()))
        if until <= now:
            nodes = ()
        if node_id not in nodes:
            nodes = (*nodes, node_id)[-DEATHS:]
        if len(self._deaths) >= MOST:
            del self._deaths[next(iter(self._deaths))]  # the one whose last death was longest ago
        self._deaths[key] = (now + self._seconds, nodes)
        return len(nodes) >= DEATHS

    def known(self, request: bytes) -> bool:
        """Whether so many nodes have died of this request of late that it is not to be tried again."""
        key = xxhash.xxh3_64_intdigest(request)
        until, nodes = self._deaths.get(key, (0.0, ()))
        if until <= self._clock():
            self._deaths.pop(key, None)
            return False
        return len(nodes) >= DEATHS

    def lives(self, request: bytes) -> None:
        """The request has been given a token: it is not what nodes die of."""
        self._deaths.pop(xxhash.xxh3_64_intdigest(request), None)


def acquits(error: LayaError | None) -> bool:
    """Whether a node's answer, or an error in its place, shows that it lived through the request."""
    return error is None or error.code not in _DOUBTFUL


def poisonous() -> LayaError:
    """What the client of such a request is told."""
    return LayaError(
        Code.UNAVAILABLE,
        "POISONOUS",
        f"{DEATHS} nodes in a row were lost with this request before it got a token: it is not tried on another one.",
        metadata={"retry_safe": "false"},
    )
