"""What the true counts of a request teach: its pool's ratios, and how far its node's cache is to be trusted."""

from __future__ import annotations

from typing import Final

from router_node.dispatch.reservations import Reservation

_TRUST_GAIN: Final = 0.1
_LEAST_TRUST: Final = 0.05


def observe(reservation: Reservation, prompt_tokens: int, cached_tokens: int) -> None:
    """The node's true counts for a request: what was expected is corrected by them. Nonsense teaches nothing."""
    if prompt_tokens <= 0 or not 0 <= cached_tokens <= prompt_tokens:
        return
    node = reservation.node
    node.refusals = 0
    pool = node.pool
    if pool is None:
        return
    ask = reservation.ask
    learned = pool.learned
    learned.length(prompt_tokens)
    if ask.prompt_bytes > 0:
        learned.ratio(ask.prompt_bytes, prompt_tokens)
    expected = reservation.expected_cached
    if reservation.guessed:
        learned.guess(reservation.reason, cached_tokens / prompt_tokens, prompt_tokens)
    elif expected > 0:
        confirmed = min(1.0, cached_tokens / expected)
        node.trust = max(_LEAST_TRUST, node.trust + (confirmed - node.trust) * _TRUST_GAIN)
        if reservation.reason != "session":
            learned.rest(expected, prompt_tokens, cached_tokens)
