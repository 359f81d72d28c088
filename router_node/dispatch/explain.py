"""Says why a node would be chosen, with every term of every candidate's cost. Changes nothing."""

from __future__ import annotations

import math
from typing import NamedTuple

from router_node.dispatch import cost
from router_node.dispatch.affinity import Keys
from router_node.dispatch.picker import Picker
from router_node.dispatch.pool import Pool
from router_node.dispatch.types import Candidate, NodeState


class CandidateTerms(NamedTuple):
    """One node and the terms of its cost; the fields of ``laya.v1.Candidate``, with its units.

    ``barrier_seconds`` and those from ``pending_seconds`` on are the terms, whose sum is the cost.
    """

    node_id: str
    cost_seconds: float
    queued_tokens: int
    reserved_tokens: int
    uncached_prompt_tokens: int
    prefill_rate: float
    kv_share: float
    barrier_seconds: float
    reason: str
    pending_tokens: int
    pending_seconds: float
    reserved_seconds: float
    prompt_seconds: float
    prompt_weight: float
    step_seconds: float
    unseen_seconds: float
    stale_seconds: float
    penalty_seconds: float


class Explanation(NamedTuple):
    """The decision as it would be now."""

    node_id: str
    candidates: list[CandidateTerms]
    summary: str


def explain(
    picker: Picker, pool: Pool, keys: Keys, prompt: int, total: int, now: float, waits: str, limit: int
) -> Explanation:
    """Explain the choice for a request of ``total`` tokens, of which ``prompt`` are the prompt's.

    ``waits`` says why it would wait even if a node had room, empty when it would not. The very next ``choose`` with the
    same tables gives the same node: the random numbers used here are put back.
    """
    looked: list[Candidate] = []
    state = picker.rng.getstate()
    try:
        chosen = picker.choose(pool, keys, prompt, total, now, looked=looked)
    finally:
        picker.rng.setstate(state)
    only = picker.required(pool, keys)
    hidden = picker.hidden(pool)
    ask = _Asked(prompt, total, now, pool.unseen.beside(total) if hidden else 0)
    scored: dict[str, CandidateTerms] = {}
    for candidate in looked:
        node = candidate[0]
        why_not = _why_not(node, total)
        if not why_not and only is not None and node is not only:
            why_not = f"the session is bound to {only.id}"
        if node.id not in scored:
            scored[node.id] = _terms(candidate, ask, why_not)
    ranked = sorted(scored.values(), key=lambda terms: terms.cost_seconds)
    for node_id in sorted(pool.nodes):
        if len(ranked) >= limit:
            break
        if node_id not in scored:
            node = pool.nodes[node_id]
            why_not = _why_not(node, total) or "not drawn: others were as good or better"
            ranked.append(_terms(picker.expected(pool, keys, node, prompt), ask, why_not))
    if chosen is None or waits:
        reason = waits or f"no node has room for {total} tokens"
        return Explanation("", ranked, f"The request would wait: {reason}.")
    node, _, why, _ = chosen
    return Explanation(node.id, ranked, _summary(scored[node.id], why, ranked, hidden, len(scored), len(pool.nodes)))


class _Asked(NamedTuple):
    """The request as the terms need it."""

    prompt: int
    total: int
    now: float
    beside: int


def _summary(
    best: CandidateTerms, why: str, ranked: list[CandidateTerms], hidden: float, candidates: int, nodes: int
) -> str:
    least = ranked[0].cost_seconds
    how = f"the least of {candidates} candidates out of {nodes} nodes"
    if best.cost_seconds > least:
        how = (
            f"{(best.cost_seconds - least) * 1000:.1f} ms more than the least of {candidates} candidates, because"
            f" other routers' requests of about {hidden * 1000:.0f} ms are on their way unseen and may go there"
        )
    expected = f"{best.cost_seconds * 1000:.1f} ms to the first token expected"
    return f"{best.node_id} is chosen ({why}): {expected}, {how}."


def _terms(candidate: Candidate, ask: _Asked, why_not: str) -> CandidateTerms:
    node, expected, reason, _ = candidate
    need = node.need(ask.total)
    uncached = ask.prompt - expected * node.trust
    pace = node.inv_rate
    share = (node.used + need) / node.capacity if node.capacity else 1.0
    barrier = cost.barrier(share)
    crowded = cost.barrier((node.used + need + ask.beside) / node.capacity) if node.capacity else barrier
    pending, reserved = node.pending * pace, node.reserved_prompt_tokens * pace
    own = cost.WORK_WEIGHT * uncached * pace
    unseen, penalty = crowded - barrier, cost.penalty(node, ask.now)
    others = pending + reserved + own + node.step + barrier + unseen + penalty
    stale = max(cost.staleness(node, ask.now), -others)  # a cost is not below 0
    return CandidateTerms(
        node.id,
        math.inf if why_not else others + stale,
        node.queued,
        node.reserved_prompt_tokens,
        round(uncached),
        1.0 / pace if pace else 0.0,
        share,
        barrier,
        why_not or reason,
        node.pending,
        pending,
        reserved,
        own,
        cost.WORK_WEIGHT,
        node.step,
        unseen,
        stale,
        penalty,
    )


def _why_not(node: NodeState, total: int) -> str:
    """Why a node cannot take the request, empty when it can."""
    if node.state != "ready":
        return f"{node.state}: {node.closed_reason}" if node.closed_reason else node.state
    if node.room >= node.need(total):
        return ""
    if len(node.uncounted) >= node.seats:
        return f"no sequence free of {node.spec.max_num_seqs}"
    ahead = node.backlog * node.inv_rate
    if node.pool is not None and ahead > node.pool.max_backlog:
        return f"{ahead:.1f} s of prefill ahead of it, more than {node.pool.max_backlog:.1f} s"
    if node.free > 0 and node.room < 0:
        return "kept free for a large request that waits"
    return f"no room: {max(0, node.free)} tokens free of {node.need(total)} needed"
