"""Who may hold a request's KV cache: what is remembered of its session and of its prompt's blocks, and the hash ring,
which says the same at every router where nothing is remembered.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest

from router_node.dispatch.pool import Pool
from router_node.dispatch.prefix import MAX_BLOCKS, Hash, Holders, PrefixMap, held_blocks
from router_node.dispatch.registry import Registry
from router_node.dispatch.sessions import OWNER_MASK, TOKENS_SHIFT, SessionTable
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.types import (
    HEADROOM,
    PREFIX,
    RING,
    SESSION,
    SESSION_NEXT,
    SESSION_RING,
    SESSION_RING_NEXT,
    Ask,
    Candidate,
    NodeState,
)

_RING_STEPS: Final = 8

Keys = tuple[int, int, Sequence[Hash], Sequence[Holders], int]
"""What identifies a request's cache, hashed and looked up once: the hash of its session (-1 for none), what is recorded
of it (0 for nothing), the hashes of the prompt's blocks, the holders of the leading ones that the prefix map knows, and
how many of these are fresh."""

NO_KEYS: Final[Keys] = (-1, 0, (), (), 0)


class Pins(Protocol):
    """Who wants to know where sessions go."""

    @abstractmethod
    def note(self, key: int, node: NodeState, tokens: int) -> None:
        """A session, by its hash, was sent to ``node`` with a prompt of ``tokens``. Called for each request of one."""


class Affinity:
    """The tables, and the candidates that they name."""

    __slots__ = ("_owners", "_random", "_slots", "pins", "prefixes", "rng", "sessions")

    def __init__(self, settings: DispatchSettings, rng: random.Random, registry: Registry) -> None:
        self.sessions = SessionTable(settings.cache_size)
        self.pins: Pins | None = None
        """Told where each session goes, where others are to know."""
        self.prefixes = PrefixMap(settings.cache_size)
        self.rng = rng
        self._random = rng.random
        self._slots = registry.slots
        self._owners = registry.owners

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
        blocks: Sequence[Hash] = prefix if len(prefix) <= MAX_BLOCKS else prefix[:MAX_BLOCKS]
        mark: Hash = salt
        chain: list[Hash] = [block ^ mark for block in blocks]
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
                if found and (there := held(pool, found, node, prompt)) > cached:
                    cached = there
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
            fewest = len(deepest.slots)
            if len(found[0].slots) != fewest:
                # Fewer blocks, but more nodes: those that hold the most may be busy.
                while len(found[depth - 1].slots) == fewest:
                    depth -= 1
                cached = pool.learned.held(depth, prompt)
                for node in self._holders(found[depth - 1], 1):
                    out.append((node, cached, PREFIX, False))
        elif chain and session < 0:
            node = self.ring_node(pool, chain[0])
            if node is not None:
                out.append((node, int(pool.learned.ring_share * prompt), RING, True))
        return out

    def homes(self, pool: Pool, keys: Keys, prompt: int, among: list[Candidate]) -> None:
        """Add to the candidates ``among`` where other routers may have sent the session: the ring's node and its next.

        For where routers do not see each other's requests. When a session's node is too busy they all turn to the same
        other one, so that the next turn, at whatever router, finds there what is missing at the first. How much of a
        prompt is found at each is learned.
        """
        key, _, _, found, _ = keys
        learned = pool.learned
        known = among[0][0] if among else None
        guessed = known is None or among[0][3]  # and then it is the ring's own
        reason = SESSION if guessed else SESSION_RING
        slots = self._slots
        for step, slot in enumerate(pool.ring.walk(key)):
            node = slots[slot]
            if node is not None and node.live:
                if node is not known:
                    cached = int(learned.session_share(prompt, reason) * prompt)
                    there = held(pool, found, node, prompt) if found else 0
                    among.append((node, there, PREFIX, False) if there > cached else (node, cached, reason, True))
                if reason in (SESSION_NEXT, SESSION_RING_NEXT):
                    break
                reason = SESSION_NEXT if guessed else SESSION_RING_NEXT
            if step == _RING_STEPS:
                break

    def expected(self, pool: Pool, keys: Keys, node: NodeState, prompt: int) -> Candidate:
        """``node`` as a candidate, for a request that waited and gets the node that has room."""
        found = keys[3]
        if keys[0] >= 0:
            home, seen = self.home(pool, keys)
            if home is node and seen >= 0:
                return (node, min(seen, prompt), SESSION, False)
        there = held(pool, found, node, prompt) if found else 0
        return (node, there, PREFIX if there else HEADROOM, False)

    def record(self, keys: Keys, node: NodeState, prompt: int) -> int:
        """The request goes to ``node``. Returns the number of leading prompt blocks it was known to hold."""
        session, _, chain, found, fresh = keys
        if session >= 0:
            self.sessions.record(session, node.incarnation, prompt)
            if self.pins is not None:
                self.pins.note(session, node, prompt)
        return self.prefixes.insert(chain, found, fresh, node.slot) if chain else 0

    def _holders(self, holders: Holders, want: int) -> list[NodeState]:
        """Up to ``want`` of the nodes that hold a block, from a random place on when there are more.

        Not round and round: were the last slots followed by the first, all routers would more often see the same few,
        and meet at the idlest of them.
        """
        slots = self._slots
        out: list[NodeState] = []
        held = holders.slots
        count = len(held)
        at = bisect_left(held, int(self._random() * (held[-1] + 1))) if count > 1 else 0
        while at < count and len(out) < want:
            node = slots[held[at]]
            if node is not None:
                out.append(node)
            at += 1
        return out


def held(pool: Pool, found: Sequence[Holders], node: NodeState, prompt: int) -> int:
    """Prompt tokens that ``node`` holds, by what the prefix map has found for the prompt's blocks; at least one was."""
    blocks = held_blocks(found, node.slot)
    return pool.learned.held(blocks, prompt) if blocks else 0
