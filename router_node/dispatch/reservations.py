"""Reservations: what a router has sent to a node that no report of the node has counted yet.

A reservation is made in the moment a node is chosen and ends exactly once: when a report lists its id, because from
then on the node's own numbers include it, or when its stream ends, whichever comes first. Nothing else ends one: no
health check, no new report, no restart of the node (the streams to the old process end by themselves).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from router_node.dispatch.types import Ask, Candidate, NodeState

_HELD: Final = 0
_COUNTED: Final = 1
_ENDED: Final = 2


class Reservation:
    """Room on one node for one request. Whoever holds it calls ``end()`` when the request is over, come what may."""

    __slots__ = (
        "_on_end",
        "_state",
        "_why",
        "ask",
        "chain",
        "id",
        "judged",
        "known_blocks",
        "node",
        "prompt_tokens",
        "tokens",
        "waited",
    )

    def __init__(
        self,
        dispatch_id: bytes,
        ask: Ask,
        why: Candidate,
        tokens: int,
        prompt_tokens: int,
        on_end: Callable[[Reservation], None],
    ) -> None:
        self.id = dispatch_id
        """Value of ``laya-dispatch``."""
        self.ask = ask
        self.tokens = tokens
        """KV tokens held: prompt and new tokens, in whole blocks of the node."""
        self.prompt_tokens = prompt_tokens
        """Prompt tokens it adds to the node's prefill queue: those that the node's cache likely lacks."""
        self.chain: Sequence[int] = ()
        """The prompt's blocks, as the prefix map knows them."""
        self.judged = False
        """What its end says of the node has been taken down."""
        self.known_blocks = 0
        """Leading prompt blocks that the node was known to hold before."""
        self.waited = 0.0
        """Seconds in the router's queue."""
        self.node = node = why[0]
        self._why = why
        self._on_end = on_end
        self._state = _HELD
        node.uncounted[dispatch_id] = self
        node.mine += 1
        node.health.sent += 1
        node.reserved_tokens += tokens
        node.reserved_prompt_tokens += prompt_tokens

    @property
    def expected_cached(self) -> int:
        """Prompt tokens that the node's cache should hold; ``prompt_tokens`` also allows for its ``trust``."""
        return self._why[1]

    @property
    def reason(self) -> str:
        """Why this node was a candidate: one of those in ``types``, "session" to "headroom"."""
        return self._why[2]

    @property
    def guessed(self) -> bool:
        """No record stands behind ``expected_cached``, only the ring."""
        return self._why[3]

    @property
    def held(self) -> bool:
        """The router counts it; no report does yet."""
        return self._state == _HELD

    @property
    def ended(self) -> bool:
        """``end()`` was called."""
        return self._state == _ENDED

    def end(self) -> None:
        """The request is over. Calling it again does nothing."""
        state = self._state
        if state == _ENDED:
            return
        self._state = _ENDED
        self.node.mine -= 1
        if state == _HELD:
            _release(self)
            self._on_end(self)


def count(node: NodeState, ids: Iterable[str | bytes]) -> int:
    """A report of ``node`` counts these dispatches: they stop being reservations. Returns how many did.

    Ids that are unknown, already counted or already ended are nothing: a report may repeat what another one said.
    """
    uncounted = node.uncounted
    counted = 0
    for dispatch_id in ids:
        if not uncounted:
            break
        key = dispatch_id.encode("ascii", "replace") if isinstance(dispatch_id, str) else dispatch_id
        reservation = uncounted.get(key)
        if reservation is not None:
            reservation._state = _COUNTED
            _release(reservation)
            counted += 1
    return counted


def _release(reservation: Reservation) -> None:
    node = reservation.node
    del node.uncounted[reservation.id]
    node.reserved_tokens -= reservation.tokens
    node.reserved_prompt_tokens -= reservation.prompt_tokens
