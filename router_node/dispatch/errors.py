"""What dispatch tells a client when it cannot give a node: one sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shared.errors import Code, LayaError, exhausted, invalid, unavailable

if TYPE_CHECKING:
    from router_node.dispatch.pool import Pool
    from router_node.dispatch.queue import Ticket
    from router_node.dispatch.types import Ask

NO_NODE_RETRY: Final = 1.0
"""Seconds after which a node may have come (back)."""

_NAMED: Final = 20


def model_not_found(model: str, names: Sequence[str]) -> LayaError:
    """Nobody serves this model, and nobody did of late."""
    if not names:  # it may well be there in a moment: this router has not met a node yet, or has lost them all for long
        return unavailable("No model is served now: no node has joined; try again shortly.", "NO_NODE", NO_NODE_RETRY)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    known = "the models are " + ", ".join(names[:_NAMED]) + more
    return LayaError(Code.NOT_FOUND, "MODEL_NOT_FOUND", f"No model is named {model[:200]!r}; {known}.", param="model")


def no_node(pool: Pool) -> LayaError:
    """The model is known, but none of its nodes can be expected to take a request."""
    states: dict[str, int] = {}
    for node in pool.nodes.values():
        states[node.state] = states.get(node.state, 0) + 1
    seen = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none registered"
    return unavailable(
        f"No node is ready to serve model {pool.model!r} ({seen}); try again shortly.", "NO_NODE", NO_NODE_RETRY
    )


def queue_full(pool: Pool, limit: int) -> LayaError:
    """The bound on waiting requests is reached."""
    return exhausted(
        f"No node of model {pool.model!r} has room and {limit} requests wait already; try again later.",
        "QUEUE_FULL",
        pool.queue.retry_after(),
    )


def past_deadline() -> LayaError:
    """The client's own deadline is over."""
    return LayaError(
        Code.DEADLINE_EXCEEDED,
        "DEADLINE",
        "The request's deadline passed before a node had room for it.",
        metadata={"phase": "total", "during": "admission"},
    )


def waited_too_long(ticket: Ticket, now: float) -> LayaError:
    """A ticket's time is over."""
    ask = ticket.ask
    if ask.deadline is not None and ask.deadline <= now:
        return past_deadline()
    if not ticket.pool.live:
        return no_node(ticket.pool)
    error = exhausted(
        f"No node of model {ticket.pool.model!r} had room for {ticket.total} tokens within"
        f" {now - ticket.arrived:.1f} s; try again later.",
        "QUEUE_TIMEOUT",
        ticket.pool.queue.retry_after(),
    )
    error.metadata = {"phase": "admission"}
    return error


def checked_total(pool: Pool, ask: Ask, prompt: int, new: int) -> int:
    """KV tokens to hold, at most what the largest node has; raises LayaError where no node can ever serve them.

    An estimate of the prompt may be twice the truth, and only the truth may refuse: the node knows it. The context
    length is checked only when the number of sequences is known, because the new tokens are theirs together.
    """
    least = prompt if ask.exact else (prompt + 1) // 2
    total = pool.kv_tokens(prompt, new, ask.n)
    if pool.largest and pool.kv_tokens(least, new, ask.n) > pool.largest:
        raise _never_fits(pool, ask, prompt, new, total, pool.largest, "the KV cache")
    each = -(-new // ask.n) if ask.n > 0 else 1
    lengths = [node.spec.max_seq_len for node in pool.nodes.values()]
    if lengths and all(lengths) and least + each > max(lengths):
        raise _never_fits(pool, ask, prompt, each, prompt + each, max(lengths), "the context")
    return min(total, pool.largest) if pool.largest else total


def _never_fits(pool: Pool, ask: Ask, prompt: int, new: int, takes: int, limit: int, what: str) -> LayaError:
    prompts = f"{prompt} prompt tokens" if ask.exact else f"About {prompt} prompt tokens"
    return invalid(
        f"{prompts} and {new} new ones take {takes}, but {what} of model {pool.model!r} holds {limit} tokens on"
        " its largest node; shorten the prompt or lower max_tokens.",
        "max_tokens",
        "NEVER_FITS",
    )
