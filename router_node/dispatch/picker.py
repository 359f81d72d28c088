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

import xxhash

from router_node.dispatch.cost import score
from router_node.dispatch.pool import Pool
from router_node.dispatch.prefix import MAX_BLOCKS, PrefixMap
from router_node.dispatch.sessions import OWNER_BITS, OWNER_MASK, SessionTable
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.types import Ask, NodeState

SESSION: Final = "session"
PREFIX: Final = "prefix"
RING: Final = "ring"
HEADROOM: Final = "headroom"

_HOLDERS: Final = 2
_RING_STEPS: Final = 8

Steps = list[tuple[int, int]]


Candidate = tuple[NodeState, int, str, bool]
"""A node that was looked at; prompt tokens its cache should hold; why it was looked at; and whether only the ring, and
no record, stands behind the second. A plain tuple: five are made for each request."""


class Keys:
    """What identifies a request's cache, hashed once. ``session`` is -1 for none."""

    __slots__ = ("chain", "masks", "session")

    def __init__(self, session: int, chain: Sequence[int], masks: Sequence[int]) -> None:
        self.session = session
        self.chain = chain
        self.masks = masks


NO_KEYS: Final = Keys(-1, (), ())


class Picker:
    """Affinity tables and the choice itself. Owned by one dispatcher."""

    __slots__ = ("_draws", "_owners", "_random", "_slots", "_strict", "prefixes", "rng", "sessions")

    def __init__(
        self,
        settings: DispatchSettings,
        rng: random.Random,
        slots: list[NodeState | None],
        owners: dict[int, NodeState],
    ) -> None:
        self.sessions = SessionTable(settings.cache_size)
        self.prefixes = PrefixMap(settings.cache_size)
        self.rng = rng
        self._random = rng.random
        self._slots = slots  # by slot
        self._owners = owners  # by incarnation
        self._draws = settings.draws
        self._strict = settings.require_session_affinity

    def keys(self, pool: Pool, ask: Ask, touch: bool = True) -> Keys:
        """Hashes of an ask within its pool and tenant. ``touch=False`` leaves the tables as they are."""
        session = ask.session
        prefix = ask.prefix
        if not session and not prefix:
            return NO_KEYS
        salt = pool.salt
        if ask.tenant:
            salt = xxhash.xxh3_64_intdigest(ask.tenant.encode(), salt)
        key = xxhash.xxh3_64_intdigest(session, salt) if session else -1
        if not prefix:
            return Keys(key, (), ())
        chain = [block ^ salt for block in (prefix if len(prefix) <= MAX_BLOCKS else prefix[:MAX_BLOCKS])]
        return Keys(key, chain, self.prefixes.match(chain, touch))

    def home(self, pool: Pool, session: int) -> tuple[NodeState | None, int]:
        """Node of a session and prompt tokens it has seen there; -1 tokens when only the ring says so."""
        found = self.sessions.find(session)
        if found >= 0:
            node = self._owners.get(found & OWNER_MASK)
            if node is not None and node.pool is pool and node.live:
                return node, found >> OWNER_BITS
        return self.ring_node(pool, session), -1

    def ring_node(self, pool: Pool, key: int) -> NodeState | None:
        """The ring's node for a hash; the next live one where that is not live. None when a few in a row are not."""
        slots = self._slots
        node = slots[at] if (at := pool.ring.lookup(key)) >= 0 else None
        if node is None or node.live:
            return node
        for step, slot in enumerate(pool.ring.walk(key)):
            node = slots[slot]
            if node is not None and node.live:
                return node
            if step == _RING_STEPS:
                break
        return None

    def candidates(self, pool: Pool, keys: Keys, prompt: int) -> list[Candidate]:
        """Who is worth a look for a prompt of so many tokens, those with affinity first."""
        out: list[Candidate] = []
        steps = _steps(keys.masks) if keys.masks else ()
        per_block = pool.learned.block_tokens if steps else 0.0
        if keys.session >= 0:
            node, seen = self.home(pool, keys.session)
            if node is not None:
                guessed = seen < 0
                cached = int(pool.learned.session_share * prompt) if guessed else min(seen, prompt)
                if steps and (held := _held(steps, node.slot, per_block, prompt)) > cached:
                    cached, guessed = held, False
                out.append((node, cached, SESSION, guessed))
        if steps:
            for mask, _ in steps[:2]:
                for node in self._holders(mask):
                    out.append((node, _held(steps, node.slot, per_block, prompt), PREFIX, False))
        elif keys.chain and keys.session < 0:
            node = self.ring_node(pool, keys.chain[0])
            if node is not None:
                out.append((node, int(pool.learned.ring_share * prompt), RING, True))
        for node in pool.load.draw(self._draws, self._random):
            held = _held(steps, node.slot, per_block, prompt) if steps else 0
            out.append((node, held, HEADROOM, False))
        return out

    def required(self, pool: Pool, keys: Keys) -> NodeState | None:
        """The one node that may serve this session, where sessions are bound to their nodes."""
        return self.home(pool, keys.session)[0] if self._strict and keys.session >= 0 else None

    def choose(
        self, pool: Pool, keys: Keys, prompt: int, total: int, now: float, exclude: Container[str] = ()
    ) -> Candidate | None:
        """The candidate of least cost that has room for ``total`` tokens, of which ``prompt`` are the prompt's."""
        only = self.required(pool, keys) if self._strict else None
        looked = self.candidates(pool, keys, prompt)
        best = _least(looked, prompt, total, now, exclude, only)
        if best is None and only is None:
            best = _least(self.with_room(pool, keys, prompt, total, exclude), prompt, total, now, exclude, None)
        return best

    def with_room(
        self, pool: Pool, keys: Keys, prompt: int, total: int, exclude: Container[str] = ()
    ) -> list[Candidate]:
        """A few nodes with room for ``total`` tokens, out of the roomiest; empty only when no node has."""
        steps = _steps(keys.masks) if keys.masks else ()
        out: list[Candidate] = []
        for bucket in pool.roomy(total):
            size = len(bucket)
            start = int(self._random() * size)
            for i in range(size):
                node = bucket[(start + i) % size]
                if node.room >= node.need(total) and node.id not in exclude:
                    held = _held(steps, node.slot, pool.learned.block_tokens, prompt) if steps else 0
                    out.append((node, held, HEADROOM, False))
                    if len(out) >= self._draws:
                        return out
        return out

    def expected(self, pool: Pool, keys: Keys, node: NodeState, prompt: int) -> Candidate:
        """``node`` as a candidate, for a request that waited and gets the node that has room."""
        if keys.session >= 0:
            home, seen = self.home(pool, keys.session)
            if home is node and seen >= 0:
                return (node, min(seen, prompt), SESSION, False)
        held = _held(_steps(keys.masks), node.slot, pool.learned.block_tokens, prompt) if keys.masks else 0
        return (node, held, PREFIX if held else HEADROOM, False)

    def record(self, pool: Pool, keys: Keys, node: NodeState, prompt: int) -> int:
        """The request goes to ``node``. Returns the number of leading prompt blocks it was known to hold."""
        if keys.session >= 0:
            at_home = pool.ring.lookup(keys.session) == node.slot
            self.sessions.record(keys.session, node.incarnation, prompt, at_home)
        if keys.chain:
            return self.prefixes.insert(keys.chain, keys.masks, node.slot)
        return 0

    def _holders(self, mask: int) -> list[NodeState]:
        """A few of the nodes in ``mask``, at random when there are more."""
        slots = self._slots
        out: list[NodeState] = []
        spread = mask.bit_length()
        turn = int(self._random() * spread) if mask & (mask - 1) else 0
        rest = mask >> turn << turn or mask
        while rest and len(out) < _HOLDERS:
            low = rest & -rest
            node = slots[low.bit_length() - 1]
            if node is not None:
                out.append(node)
            rest ^= low
        return out


def _least(
    looked: list[Candidate], prompt: int, total: int, now: float, exclude: Container[str], only: NodeState | None
) -> Candidate | None:
    best: Candidate | None = None
    least = math.inf
    for candidate in looked:
        node, expected, _, _ = candidate
        need = total + -total % node.block
        if node.room < need or (exclude and node.id in exclude) or (only is not None and node is not only):
            continue
        cost = score(node, need, prompt - expected * node.trust, now)
        if cost < least:
            least = cost
            best = candidate
    return best


def _steps(masks: Sequence[int]) -> Steps:
    """(holders, blocks held), the longest first: where the set of holders changes along the prompt."""
    depth = len(masks)
    last = masks[-1]
    out = [(last, depth)]
    if masks[0] != last:
        for at in range(depth - 2, -1, -1):
            if masks[at] != last:
                last = masks[at]
                out.append((last, at + 1))
    return out


def _held(steps: Sequence[tuple[int, int]], slot: int, per_block: float, prompt: int) -> int:
    """Prompt tokens that ``slot`` holds."""
    for mask, blocks in steps:
        if mask >> slot & 1:
            return min(prompt, int(blocks * per_block))
    return 0
