"""Requests that nodes die of: two in a row without a new token or an answer, and the request is refused for a while.

Otherwise one request that crashes an engine would take node after node with it. What is remembered is a hash of the
request, for a bounded time, and of a bounded number of them. A request that gets a token, or any answer, is innocent
and forgotten. Many that are the same, and were on one node or on several together, are one death: a second one is that
of a node which was sent the request after the first, and took it. One that did not show that it had it may have been
dying already, with the first; that is believed of one node, so that a third death is always enough.
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
NODES: Final = 8  # of each


class _Suspect:
    """One request: ``until`` when it is remembered, the time of the last death that counted, the nodes lost with it.

    ``doubted``: one of them may have died together with the first.
    """

    __slots__ = ("at", "deaths", "doubted", "nodes", "until")

    def __init__(self) -> None:
        self.until = self.at = 0.0
        self.deaths = 0
        self.doubted = False
        self.nodes: tuple[str, ...] = ()


class Poisons:
    """``seconds`` is how long a death is remembered; ``clock`` gives monotonic seconds."""

    __slots__ = ("_clock", "_seconds", "_suspects")

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._suspects: dict[int, _Suspect] = {}

    def __len__(self) -> int:
        """Requests remembered; while there are none, there is nothing to ask."""
        return len(self._suspects)

    def died(self, request: bytes, node_id: str, sent: float, now: float, taken: bool = True) -> bool:
        """A node died and had given this request nothing new. Whether that was one death too many.

        ``sent`` is when that node was sent it, ``now`` the time by the same clock; ``taken``: it showed that it had it.
        """
        key = xxhash.xxh3_64_intdigest(request)
        suspect = self._suspects.pop(key, None)
        if suspect is None or suspect.until <= self._clock():
            suspect = _Suspect()
        if node_id not in suspect.nodes:
            suspect.nodes = (*suspect.nodes, node_id)[-NODES:]
            # Nodes that had it at the same time, in equal requests, may have gone together.
            if not suspect.deaths or sent >= suspect.at:
                if taken or suspect.doubted or not suspect.deaths:
                    suspect.deaths += 1
                    suspect.at = now
                else:
                    suspect.doubted = True
        suspect.until = self._clock() + self._seconds
        if len(self._suspects) >= MOST:
            del self._suspects[next(iter(self._suspects))]  # the one whose last death was longest ago
        self._suspects[key] = suspect
        return suspect.deaths >= DEATHS

    def known(self, request: bytes) -> bool:
        """Whether so many nodes have died of this request of late that it is not to be tried again."""
        key = xxhash.xxh3_64_intdigest(request)
        suspect = self._suspects.get(key)
        if suspect is None:
            return False
        if suspect.until <= self._clock():
            del self._suspects[key]
            return False
        return suspect.deaths >= DEATHS

    def lives(self, request: bytes) -> None:
        """The request has been given a token: it is not what nodes die of."""
        self._suspects.pop(xxhash.xxh3_64_intdigest(request), None)


def acquits(error: LayaError | None) -> bool:
    """Whether a node's answer, or an error in its place, shows that it lived through the request."""
    return error is None or error.code not in _DOUBTFUL


def acquits_http(status: int) -> bool:
    """The same of an answer over HTTP."""
    return status < 500 and status != 429


def poisonous() -> LayaError:
    """What the client of such a request is told."""
    return LayaError(
        Code.UNAVAILABLE,
        "POISONOUS",
        f"{DEATHS} nodes in a row were lost with this request before it got a new token or an answer: "
        "it is not tried on another one.",
        metadata={"retry_safe": "false"},
    )
