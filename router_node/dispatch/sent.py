"""What was sent where, until its node has told what became of it: true counts first, evictions later.

Both come in reports, by dispatch id, mostly after the request is over. So this remembers more than what runs, and no
more than so many: a node that tells nothing costs memory that is bounded, and what is forgotten is only not learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from router_node.dispatch.learning import observe
from router_node.dispatch.prefix import BLOCK_BYTES, PrefixMap
from router_node.dispatch.reservations import Reservation
from router_node.dispatch.told import EvictionLike, UsageLike
from router_node.dispatch.types import NodeState

AWAITED: Final = 4096
"""Requests whose counts may still come."""
TRACED: Final = 8192
"""Prompts whose evictions may still come."""


class Trace(NamedTuple):
    """Where a prompt's blocks went. ``block_tokens`` is how many tokens one of them has."""

    chain: Sequence[int]
    block_tokens: float
    incarnation: int


class Sent:
    """See the module's docstring. Owned by one dispatcher."""

    __slots__ = ("_awaited", "_dropped", "_old_awaited", "_old_traces", "_traces")

    def __init__(self) -> None:
        # Two generations each: when the young one is half of what may be kept, the old one is let go, one by one.
        self._awaited: dict[bytes, Reservation] = {}
        self._old_awaited: dict[bytes, Reservation] = {}
        self._dropped: dict[bytes, Reservation] = {}
        self._traces: dict[bytes, Trace] = {}
        self._old_traces: dict[bytes, Trace] = {}

    def __len__(self) -> int:
        """Requests that are waited for to be told of."""
        return len(self._awaited) + len(self._old_awaited)

    def granted(self, reservation: Reservation) -> None:
        """A request goes to a node."""
        awaited = self._awaited
        awaited[reservation.id] = reservation
        if self._dropped:
            self._dropped.popitem()
        if len(awaited) >= AWAITED // 2:
            self._dropped = self._old_awaited
            self._old_awaited = awaited
            self._awaited = {}

    def forget(self, reservation: Reservation) -> None:
        """The node did not take it."""
        self._awaited.pop(reservation.id, None)
        self._old_awaited.pop(reservation.id, None)

    def used(self, node: NodeState, usages: Iterable[UsageLike]) -> None:
        """The node tells true counts. What it says of a request that it was not sent is nothing."""
        for usage in usages:
            key = usage.dispatch.encode("ascii", "replace")
            reservation = self._awaited.pop(key, None) or self._old_awaited.pop(key, None)
            if reservation is None or reservation.node is not node:
                continue
            prompt = usage.prompt_tokens
            observe(reservation, prompt, usage.cached_tokens)
            if reservation.chain and node.spec.tells_evictions and prompt > 0:
                self._trace(key, reservation, prompt)

    def evicted(self, node: NodeState, evictions: Iterable[EvictionLike], prefixes: PrefixMap) -> None:
        """The node tells what its cache has lost: the prompt blocks behind what it has kept are no longer there.

        Approximate: tokens are spread evenly over the prompt's bytes, and a chat template's own are among them.
        """
        for eviction in evictions:
            key = eviction.dispatch.encode("ascii", "replace")
            trace = self._traces.get(key) or self._old_traces.get(key)
            if trace is not None and trace.incarnation == node.incarnation:
                prefixes.forget(trace.chain, node.slot, int(eviction.kept_tokens / trace.block_tokens))

    def _trace(self, key: bytes, reservation: Reservation, prompt: int) -> None:
        size = max(reservation.ask.prompt_bytes, BLOCK_BYTES * len(reservation.chain))
        traces = self._traces
        traces[key] = Trace(reservation.chain, prompt * BLOCK_BYTES / size, reservation.node.incarnation)
        if len(traces) >= TRACED // 2:
            self._old_traces = traces
            self._traces = {}
