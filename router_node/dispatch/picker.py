"""Chooses a node for a request: a few candidates, each with its cost; the least wins.

Candidates are the nodes that likely hold the request's cache (its session's node, holders of its prefix, the ring's
node), and a few draws from the best buckets. So a choice takes the same time with 4 nodes and with 1,000. Affinity only
ever lowers a cost. When none of them has room, the roomiest buckets are asked, which misses nobody.
"""

from __future__ import annotations

import math
import random
from collections.abc import Container, Sequence
from typing import Final

from router_node.dispatch.affinity import NO_KEYS, Affinity, Keys, held
from router_node.dispatch.cost import WORK_WEIGHT, score
from router_node.dispatch.pool import Pool
from router_node.dispatch.prefix import Holders
from router_node.dispatch.registry import Registry
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.types import HEADROOM, Candidate, NodeState
from router_node.dispatch.unseen import FROM_SECONDS, drawn, level_of

_BLIND_DRAWS: Final = 8


class Picker(Affinity):
    """Affinity tables and the choice itself. Owned by one dispatcher."""

    __slots__ = ("_draws", "_strict")

    def __init__(self, settings: DispatchSettings, rng: random.Random, registry: Registry) -> None:
        super().__init__(settings, rng, registry)
        self._draws = settings.draws
        self._strict = settings.require_session_affinity

    def required(self, pool: Pool, keys: Keys) -> NodeState | None:
        """The one node that may serve this session, where sessions are bound to their nodes."""
        return self.home(pool, keys)[0] if self._strict and keys[0] >= 0 else None

    def choose(
        self,
        pool: Pool,
        keys: Keys,
        prompt: int,
        total: int,
        now: float,
        exclude: Container[str] = (),
        looked: list[Candidate] | None = None,
    ) -> Candidate | None:
        """The candidate of least cost that has room for ``total`` tokens, of which ``prompt`` are the prompt's.

        None only when no node that is not in ``exclude`` has. All that were looked at are added to ``looked``.
        """
        if exclude or self._strict:
            return self._choose_among(pool, keys, prompt, total, now, exclude, looked)
        hidden = pool.unseen.tokens * pool.quickest
        if hidden > FROM_SECONDS:  # as ``hidden`` says
            blind = self._choose_blind(pool, keys, prompt, total, now, hidden, looked)
            if blind is not None:
                return blind
        best: Candidate | None = None
        least = math.inf
        found = keys[3]
        draws = self._draws
        block = pool.block
        need = total + -total % block
        if keys is not NO_KEYS:
            affine = self.affine(pool, keys, prompt)
            for candidate in affine:
                node = candidate[0]
                if node.block != block:
                    block = node.block
                    need = total + -total % block
                if node.room >= need:
                    cost = score(node, need, prompt - candidate[1] * node.trust, now)
                    if cost < least:
                        least = cost
                        best = candidate
            if looked is not None:
                looked += affine
            if best is not None:
                draws = 1  # those in the best bucket hardly differ
        for node in pool.load.draw(draws, self._random):
            if node.block != block:
                block = node.block
                need = total + -total % block
            there = held(pool, found, node, prompt) if found else 0
            uncached = prompt - there * node.trust if there else prompt
            # Most draws lose to a node with affinity by their queue alone.
            ahead = (node.backlog + WORK_WEIGHT * uncached) * node.inv_rate
            if node.room >= need and (ahead < least or now > node.plain_until):
                cost = score(node, need, uncached, now)
                if cost < least:
                    least = cost
                    best = (node, there, HEADROOM, False)
            if looked is not None:
                looked.append((node, there, HEADROOM, False))
        return best or self._choose_among(pool, keys, prompt, total, now, exclude, looked)

    def _choose_blind(
        self,
        pool: Pool,
        keys: Keys,
        prompt: int,
        total: int,
        now: float,
        hidden: float,
        looked: list[Candidate] | None,
    ) -> Candidate | None:
        """``choose`` where other routers' requests of ``hidden`` seconds are on their way, nobody knows to whom.

        They go to who looks idle, as ours would; so who looks idle is as dear as the level to which they will fill it.
        A node with affinity is taken if it costs no more than that. Else any that looks idle enough may be the one.
        Of KV a node must have room for one or two of others as well, or it is as dear as a full one.
        """
        found = keys[3]
        beside = pool.unseen.beside(total)
        best: Candidate | None = None
        least = math.inf
        affine = self.affine(pool, keys, prompt) if keys is not NO_KEYS else []
        if keys[0] >= 0:
            self.homes(pool, keys, prompt, affine)
        for candidate in affine:
            node = candidate[0]
            need = node.need(total)
            if node.room >= need:
                cost = score(node, need + beside, prompt - candidate[1] * node.trust, now)
                if cost < least:
                    least = cost
                    best = candidate
        nodes = pool.load.draw(_BLIND_DRAWS, self._random)
        ordered: list[tuple[float, int]] = []
        block = 0
        for at, node in enumerate(nodes):
            if node.block != block:
                block = node.block
                need = total + -total % block
                more = need + beside
            if node.room >= need:
                uncached = prompt - held(pool, found, node, prompt) * node.trust if found else prompt
                ordered.append((score(node, more, uncached, now), at))
        if looked is not None:
            looked += affine
            looked += [self._drawn(pool, found, node, prompt) for node in nodes]
        if not ordered:
            return best
        ordered.sort()
        costs = [cost for cost, _ in ordered]
        level = level_of(costs, hidden)
        if least <= level:
            return best
        return self._drawn(pool, found, nodes[ordered[drawn(costs, level, self._random() * hidden)][1]], prompt)

    def hidden(self, pool: Pool) -> float:
        """Seconds of other routers' work that is on its way unseen, where a choice allows for it; else 0."""
        seconds = 0.0 if self._strict else pool.unseen.tokens * pool.quickest
        return seconds if seconds > FROM_SECONDS else 0.0

    def _drawn(self, pool: Pool, found: Sequence[Holders], node: NodeState, prompt: int) -> Candidate:
        return (node, held(pool, found, node, prompt) if found else 0, HEADROOM, False)

    def _choose_among(
        self,
        pool: Pool,
        keys: Keys,
        prompt: int,
        total: int,
        now: float,
        exclude: Container[str],
        looked: list[Candidate] | None,
    ) -> Candidate | None:
        """``choose`` in the rarer cases: nodes to leave out, a session bound to its node, no room where it looked."""
        only = self.required(pool, keys)
        candidates = self.affine(pool, keys, prompt)
        if only is None:
            candidates += self._with_room(pool, keys[3], prompt, total, exclude, looked is not None)
        best: Candidate | None = None
        least = math.inf
        for candidate in candidates:
            node = candidate[0]
            need = node.need(total)
            if node.room < need or node.id in exclude or (only is not None and node is not only):
                continue
            cost = score(node, need, prompt - candidate[1] * node.trust, now)
            if cost < least:
                least = cost
                best = candidate
        if looked is not None:
            looked += candidates
        return best

    def _with_room(
        self, pool: Pool, found: Sequence[Holders], prompt: int, total: int, exclude: Container[str], only_look: bool
    ) -> list[Candidate]:
        """A few nodes with room for ``total`` tokens, some drawn, then the roomiest; empty only when none has."""
        out: list[Candidate] = []
        misplaced: list[NodeState] = []
        for nodes in (pool.load.draw(self._draws, self._random), *pool.roomy(total)):
            start = int(self._random() * len(nodes))
            for i in range(len(nodes)):
                node = nodes[(start + i) % len(nodes)]
                if node.room < total:
                    misplaced.append(node)
                elif node.room >= node.need(total) and node.id not in exclude:
                    out.append((node, held(pool, found, node, prompt) if found else 0, HEADROOM, False))
                    if len(out) >= self._draws:
                        break
            if len(out) >= self._draws:
                break
        if not only_look:
            pool.correct(misplaced)
        return out
