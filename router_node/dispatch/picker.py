"""Chooses a node for a request: a few candidates, each with its cost; the least wins.

Candidates are the nodes that likely hold the request's cache (its session's node, holders of its prefix, the ring's
node), and a few draws from the best buckets. So a choice takes the same time with 4 nodes and with 1,000. Affinity only
ever lowers a cost. When none of them has room, the roomiest buckets are asked, which misses nobody.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Container, Sequence
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest

from router_node.dispatch.cost import WORK_WEIGHT, score
from router_node.dispatch.pool import Pool
from router_node.dispatch.prefix import EPOCH_BITS, MAX_BLOCKS, PrefixMap
from router_node.dispatch.sessions import OWNER_MASK, TOKENS_SHIFT, SessionTable
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.types import Ask, Candidate, NodeState
from router_node.dispatch.unseen import FROM_SECONDS, drawn, level_of

SESSION: Final = "session"
PREFIX: Final = "prefix"
RING: Final = "ring"
HEADROOM: Final = "headroom"

_WINDOW: Final = (1 << 64) - 1
_RING_STEPS: Final = 8
_BLIND_DRAWS: Final = 5


Keys = tuple[int, int, Sequence[int], Sequence[int], int]
"""What identifies a request's cache, hashed and looked up once: the hash of its session (-1 for none), what is recorded
of it (0 for nothing), the hashes of the prompt's blocks, the entries of the prefix map for the leading ones, and how
many of these are fresh."""

NO_KEYS: Final[Keys] = (-1, 0, (), (), 0)


class Pins(Protocol):
    """Who wants to know where sessions go."""

    @abstractmethod
    def note(self, key: int, node: NodeState, tokens: int) -> None:
        """A session, by its hash, was sent to ``node`` with a prompt of ``tokens``. Called for each request of one."""


class Picker:
    """Affinity tables and the choice itself. Owned by one dispatcher."""

    __slots__ = ("_draws", "_owners", "_random", "_slots", "_strict", "pins", "prefixes", "rng", "sessions")

    def __init__(
        self,
        settings: DispatchSettings,
        rng: random.Random,
        slots: list[NodeState | None],
        owners: dict[int, NodeState],
    ) -> None:
        self.sessions = SessionTable(settings.cache_size)
        self.pins: Pins | None = None
        """Told where each session goes, where others are to know."""
        self.prefixes = PrefixMap(settings.cache_size)
        self.rng = rng
        self._random = rng.random
        self._slots = slots  # by slot
        self._owners = owners  # by incarnation
        self._draws = settings.draws
        self._strict = settings.require_session_affinity

    def keys(self, pool: Pool, ask: Ask) -> Keys:
        """What identifies an ask's cache within its pool and tenant."""
        session = ask.session
        prefix = ask.prefix
        if not session and not prefix:
            return NO_KEYS
        salt = pool.salt
        if ask.tenant:
            salt = xxh3_64_intdigest(ask.tenant.encode(), salt)
        key = -1
        found = 0
        if session:
            key = xxh3_64_intdigest(session, salt)
            found = self.sessions.find(key)
        if not prefix:
            return (key, found, (), (), 0)
        chain = [block ^ salt for block in (prefix if len(prefix) <= MAX_BLOCKS else prefix[:MAX_BLOCKS])]
        held, fresh = self.prefixes.match(chain)
        return (key, found, chain, held, fresh)

    def home(self, pool: Pool, keys: Keys) -> tuple[NodeState | None, int]:
        """Node of a session and prompt tokens it has seen there; -1 tokens when only the ring says so."""
        session, record, _, _, _ = keys
        node = self._owners.get(record & OWNER_MASK)
        if node is not None and node.live and node.pool is pool:
            return node, record >> TOKENS_SHIFT
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

    def affine(self, pool: Pool, keys: Keys, prompt: int) -> list[Candidate]:
        """Who may hold the cache of a prompt of so many tokens, most likely first."""
        out: list[Candidate] = []
        session, record, chain, found, _ = keys
        if session >= 0:
            # home(), without the call: this is the path of most requests.
            node = self._owners.get(record & OWNER_MASK)
            if node is not None and node.live and node.pool is pool:
                guessed = False
                cached = record >> TOKENS_SHIFT
                if cached > prompt:
                    cached = prompt
            else:
                node = self.ring_node(pool, session)
                guessed = True
                cached = int(pool.learned.session_share(prompt) * prompt)
            if node is not None:
                if found and (held := _held(pool, found, node, prompt)) > cached:
                    cached = held
                    guessed = False
                out.append((node, cached, SESSION, guessed))
            if not chain:
                return out
        if found:
            depth = len(found)
            deepest = found[-1]
            cached = pool.learned.held(depth, prompt)
            for node in self._holders(deepest, 2):
                out.append((node, cached, PREFIX, False))
            if found[0] != deepest:
                # Fewer blocks, but more nodes: those that hold the most may be busy.
                while found[depth - 1] == deepest:
                    depth -= 1
                cached = pool.learned.held(depth, prompt)
                for node in self._holders(found[depth - 1], 1):
                    out.append((node, cached, PREFIX, False))
        elif chain and session < 0:
            node = self.ring_node(pool, chain[0])
            if node is not None:
                out.append((node, int(pool.learned.ring_share * prompt), RING, True))
        return out

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
            held = _held(pool, found, node, prompt) if found else 0
            uncached = prompt - held * node.trust if held else prompt
            # Most draws lose to a node with affinity by their queue alone.
            ahead = (node.backlog + WORK_WEIGHT * uncached) * node.inv_rate
            if node.room >= need and (ahead < least or now > node.plain_until):
                cost = score(node, need, uncached, now)
                if cost < least:
                    least = cost
                    best = (node, held, HEADROOM, False)
            if looked is not None:
                looked.append((node, held, HEADROOM, False))
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
                uncached = prompt - _held(pool, found, node, prompt) * node.trust if found else prompt
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

    def _drawn(self, pool: Pool, found: Sequence[int], node: NodeState, prompt: int) -> Candidate:
        return (node, _held(pool, found, node, prompt) if found else 0, HEADROOM, False)

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
        self, pool: Pool, found: Sequence[int], prompt: int, total: int, exclude: Container[str], only_look: bool
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
                    out.append((node, _held(pool, found, node, prompt) if found else 0, HEADROOM, False))
                    if len(out) >= self._draws:
                        break
            if len(out) >= self._draws:
                break
        if not only_look:
            pool.correct(misplaced)
        return out

    def expected(self, pool: Pool, keys: Keys, node: NodeState, prompt: int) -> Candidate:
        """``node`` as a candidate, for a request that waited and gets the node that has room."""
        found = keys[3]
        if keys[0] >= 0:
            home, seen = self.home(pool, keys)
            if home is node and seen >= 0:
                return (node, min(seen, prompt), SESSION, False)
        held = _held(pool, found, node, prompt) if found else 0
        return (node, held, PREFIX if held else HEADROOM, False)

    def record(self, keys: Keys, node: NodeState, prompt: int) -> int:
        """The request goes to ``node``. Returns the number of leading prompt blocks it was known to hold."""
        session, _, chain, found, fresh = keys
        if session >= 0:
            self.sessions.record(session, node.incarnation, prompt)
            if self.pins is not None:
                self.pins.note(session, node, prompt)
        return self.prefixes.insert(chain, found, fresh, node.slot) if chain else 0

    def _holders(self, entry: int, want: int) -> list[NodeState]:
        """Up to ``want`` of the nodes in an entry of the prefix map, from a random place on when there are more."""
        slots = self._slots
        out: list[NodeState] = []
        holders = entry >> EPOCH_BITS
        base = 0
        if holders & (holders - 1):
            # Only a window is looked at: with 1,000 nodes the whole is too long a number to juggle.
            base = int(self._random() * holders.bit_length())
            window = holders >> base & _WINDOW
            if window:
                holders = window
            else:
                base = 0
        while holders:
            low = holders & -holders
            node = slots[base + low.bit_length() - 1]
            if node is not None:
                out.append(node)
                if len(out) == want:
                    break
            holders ^= low
        return out


def _held(pool: Pool, found: Sequence[int], node: NodeState, prompt: int) -> int:
    """Prompt tokens that ``node`` holds, by what the prefix map has found for the prompt's blocks.

    Who holds a block holds those before it, so a bisect finds how many.
    """
    bit = node.bit
    least = 0
    most = len(found)
    if not found[most - 1] & bit:
        if not found[0] & bit:
            return 0
        while least < most:
            middle = (least + most) >> 1
            if found[middle] & bit:
                least = middle + 1
            else:
                most = middle
    return pool.learned.held(most, prompt)
