"""The nodes that serve one model at one revision, and what is learned about them together."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

import xxhash

from router_node.dispatch import cost
from router_node.dispatch.buckets import ROOM_LEVELS, Buckets, room_level
from router_node.dispatch.budget import RetryBudget
from router_node.dispatch.kv import KvGroup
from router_node.dispatch.prefix import BLOCK_BYTES, MAX_BLOCKS
from router_node.dispatch.queue import Ticket, WaitQueue
from router_node.dispatch.ring import HashRing
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.types import (
    SESSION,
    SESSION_NEXT,
    SESSION_RING,
    SESSION_RING_NEXT,
    UNLIMITED,
    Ask,
    NodeSpec,
    NodeState,
)
from router_node.dispatch.unseen import Unseen

_RATIO_GAIN: Final = 0.05
_MIN_BYTES_PER_TOKEN: Final = 0.5
_MAX_BYTES_PER_TOKEN: Final = 64.0
_LENGTHS: Final = 10  # up to 127 tokens, and doubled each time; the last is for all above


class Learned:
    """What the true counts of a pool's requests have taught. Means weigh the last twenty or so most."""

    __slots__ = ("block_tokens", "bytes_per_token", "prompt_tokens", "rest_share", "ring_share", "session_shares")

    def __init__(self) -> None:
        self.bytes_per_token = 4.0
        """Prompt bytes per token; includes what a chat template adds."""
        self.block_tokens = BLOCK_BYTES / self.bytes_per_token
        """Tokens in one block of prompt bytes."""
        self.prompt_tokens = 256.0
        """Length of a prompt, for requests that say nothing of theirs."""
        self.session_shares = {
            SESSION: [0.5] * _LENGTHS,
            SESSION_RING: [0.3] * _LENGTHS,
            SESSION_NEXT: [0.2] * _LENGTHS,
            SESSION_RING_NEXT: [0.1] * _LENGTHS,
        }
        """Share of a prompt found cached where the ring alone says that a session may live, by why it does, and by the
        prompt's length in powers of two: a long prompt is a later turn, more of which is there."""
        self.ring_share = 0.0
        """The same for a prefix that this router has no record of."""
        self.rest_share = 0.5
        """Share found cached of what follows the hashed blocks, in a prompt whose blocks are all known."""

    def held(self, blocks: int, prompt: int) -> int:
        """Tokens of a prompt that a node likely holds which was sent so many of its leading blocks."""
        tokens = int(blocks * self.block_tokens)
        if tokens >= prompt:
            return prompt
        return tokens + int(self.rest_share * (prompt - tokens)) if blocks >= MAX_BLOCKS else tokens

    def rest(self, expected: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Of a prompt that was sent where its blocks were known, so many tokens were cached."""
        hashed = int(MAX_BLOCKS * self.block_tokens)
        if expected > 0.98 * hashed and prompt_tokens > hashed:  # all of its blocks were, or next to all
            share = max(0, cached_tokens - hashed) / (prompt_tokens - hashed)
            self.rest_share += (share - self.rest_share) * _RATIO_GAIN

    def ratio(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """A prompt of so many bytes had so many tokens."""
        seen = min(_MAX_BYTES_PER_TOKEN, max(_MIN_BYTES_PER_TOKEN, prompt_bytes / prompt_tokens))
        self.bytes_per_token += (seen - self.bytes_per_token) * _RATIO_GAIN
        self.block_tokens = BLOCK_BYTES / self.bytes_per_token

    def length(self, prompt_tokens: int) -> None:
        """A prompt had so many tokens."""
        self.prompt_tokens += (prompt_tokens - self.prompt_tokens) * _RATIO_GAIN

    def session_share(self, prompt_tokens: int, reason: str = SESSION) -> float:
        """Share of a prompt of that length that is likely where the ring says so for ``reason``."""
        return self.session_shares[reason][_length_class(prompt_tokens)]

    def guess(self, reason: str, share: float, prompt_tokens: int) -> None:
        """So much of a prompt was cached on the node that the ring named for ``reason``."""
        shares = self.session_shares.get(reason)
        if shares is not None:
            at = _length_class(prompt_tokens)
            shares[at] += (share - shares[at]) * _RATIO_GAIN
        else:
            self.ring_share += (share - self.ring_share) * _RATIO_GAIN


class Pool:
    """Nodes of one model and revision: the ring, the buckets, the line of those who wait, and the learned means."""

    __slots__ = (
        "aliases",
        "best_rate",
        "block",
        "budget",
        "default_max_tokens",
        "earmark",
        "earmarked",
        "groups",
        "largest",
        "learned",
        "live",
        "load",
        "max_backlog",
        "mean_wait",
        "model",
        "nodes",
        "queue",
        "quickest",
        "rate",
        "revision",
        "ring",
        "rooms",
        "safe_total",
        "salt",
        "sent",
        "unseen",
    )

    def __init__(self, model: str, revision: str, settings: DispatchSettings) -> None:
        self.model = model
        self.revision = revision
        self.salt = xxhash.xxh3_64_intdigest(f"{model}\0{revision}".encode())
        """Keeps this pool's sessions and prefixes apart from others'; the same at every router."""
        self.nodes: dict[str, NodeState] = {}
        self.aliases: Counter[str] = Counter()
        """Other names, with the number of nodes that have them."""
        self.block = 16
        """Tokens in a KV block of the node that joined last; most often of all."""
        self.groups: tuple[KvGroup, ...] = ()
        """What a sequence takes on that node; empty where it is its tokens in whole blocks."""
        self.ring = HashRing()
        self.load = Buckets(cost.LEVELS)
        """Nodes with room, by what they would cost the next request."""
        self.rooms = Buckets(ROOM_LEVELS)
        """Nodes with room, by how much; some have less than their bucket says (see ``settle``)."""
        self.queue = WaitQueue(settings.ageing, settings.tenant_weights)
        self.max_backlog = settings.max_backlog
        self.learned = Learned()
        self.unseen = Unseen()
        self.sent = 0
        """Requests sent to its nodes, retries too."""
        self.budget = RetryBudget(settings.retry_share, settings.retry_burst)
        self.live = 0
        """Nodes that take requests now or soon."""
        self.rate = 0.0
        """Mean prefill rate of its nodes, tokens a second; 0 when none has reported any."""
        self.best_rate = 0.0
        """The best prefill rate of its nodes of late, tokens a second."""
        self.quickest = 1.0 / cost.DEFAULT_RATE
        """Its inverse: seconds per prompt token."""
        self.mean_wait = 0.0
        """Mean of the reported prefill queues, in seconds."""
        self.default_max_tokens = 1
        """New tokens of a request that names none."""
        self.safe_total = 0
        """One sequence of so many tokens fits on every node and takes just those: no need to look closer. 0 asks for a
        ``survey``, and -1 says that no sequence does."""
        self.largest = 0
        """The most KV tokens that any node has."""
        self.earmark: NodeState | None = None
        """Kept free for ``earmarked``, the first in line, which found no room anywhere."""
        self.earmarked: Ticket | None = None

    def join(self, node: NodeState) -> None:
        """Add a node; ``refresh`` it next."""
        self.nodes[node.id] = node
        node.pool = self
        self.block = node.block
        self.groups = node.spec.kv_groups
        self.aliases.update(node.spec.aliases)
        self.default_max_tokens = max(self.default_max_tokens, node.spec.default_max_tokens)
        self.ring.add(node.id, node.slot)
        self.load.admit(node.slot)
        self.rooms.admit(node.slot)
        self.safe_total = 0

    def leave(self, node: NodeState, spec: NodeSpec) -> None:
        """Remove a node that joined with ``spec``."""
        self.live -= node.live
        self.unseen.left(node)
        node.live = node.open = False
        node.pool = None
        node.room = -1
        node.free = 0
        del self.nodes[node.id]
        self.aliases.subtract(spec.aliases)
        self.ring.remove(node.id)
        self.load.remove(node)
        self.rooms.remove(node)
        if self.earmark is node:
            self.earmark = self.earmarked = None
        self.safe_total = 0

    def survey(self) -> None:
        """Sum up what the nodes are. ``safe_total`` is 0 when that is needed; only a request asks for it."""
        nodes = self.nodes.values()
        self.default_max_tokens = max((node.spec.default_max_tokens for node in nodes), default=1)
        self.largest = max((capacity_of(node) for node in nodes), default=0)
        self.safe_total = min((min(capacity_of(node), node.spec.max_seq_len or UNLIMITED) for node in nodes), default=0)
        if self.groups:
            self.safe_total = -1

    def prompt_tokens(self, ask: Ask) -> int:
        """Length of the prompt in tokens: as counted, else from its bytes, else as estimated, else the usual length."""
        if ask.prompt_bytes > 0 and not ask.exact:
            return int(ask.prompt_bytes / self.learned.bytes_per_token) + 1
        if ask.prompt_tokens > 0:
            return ask.prompt_tokens
        if ask.prefix:
            return int((len(ask.prefix) + 0.5) * self.learned.block_tokens)
        return int(self.learned.prompt_tokens)

    def kv_tokens(self, prompt: int, new: int, n: int) -> int:
        """KV tokens that ``n`` sequences over one prompt hold which make ``new`` tokens together."""
        if n < 1:
            n = 1
        each = prompt + -(-new // n)
        groups = self.groups
        if groups:
            return n * self.block * sum([group.blocks(each) for group in groups])
        return each if n == 1 else n * (each + -each % self.block)

    def settle(self, node: NodeState, shrunk: bool = False) -> None:
        """Bring everything derived from a node's numbers up to date. Needed after any of them changed.

        ``shrunk`` says that its room can only have become less. Then its place in ``rooms`` is left alone, which may be
        too good until the next report; who looks there checks the room itself, and corrects the place.
        """
        self.unseen.settled(node, shrunk)
        node.backlog = backlog = node.pending + node.reserved_prompt_tokens
        reserved = node.reserved_tokens
        node.used = node.capacity - node.headroom + reserved
        if (
            not node.open
            or len(node.uncounted) >= node.seats
            or backlog * node.inv_rate > self.max_backlog
            or (node.health.probing and node.mine > 0)
        ):
            free = 0
        else:
            free = node.headroom - reserved
            if free > node.room_cap:
                free = node.room_cap
        node.free = free
        if free > 0 and node is not self.earmark:
            node.room = free
            slot = node.slot
            level = cost.load_level(node, self.quickest)
            if self.load.levels[slot] != level:
                self.load.place(node, level)
            if not shrunk:
                level = room_level(free)
                if self.rooms.levels[slot] != level:
                    self.rooms.place(node, level)
        elif node.room >= 0:
            node.room = -1
            self.load.remove(node)
            self.rooms.remove(node)

    def refresh(self, node: NodeState, now: float) -> None:
        """A node's flags or reported numbers changed: bring everything that follows from them up to date."""
        weight = 1.0 / (len(self.nodes) + 1)
        if node.prefill_rate > 0.0:
            self.rate += (node.prefill_rate - self.rate) * (weight if self.rate else 1.0)
            # The fastest may leave or slow down, so what is remembered of it fades: a tenth in ten rounds of reports.
            self.best_rate = max(node.prefill_rate, self.best_rate * (1.0 - 0.01 * weight))
            self.quickest = 1.0 / self.best_rate
        node.inv_rate = 1.0 / (node.prefill_rate or self.rate or cost.DEFAULT_RATE)
        node.step = min(node.running / node.decode_rate, cost.LONGEST_STEP) if node.decode_rate > 0.0 else 0.0
        # A node cannot tell what it will find in its cache, so it reports whole prompts; of late it found so much.
        node.pending = int(node.queued * (1.0 - node.hit_rate))
        self.mean_wait += (node.pending * node.inv_rate - self.mean_wait) * weight
        self.unseen.told(node, now)
        live = node.link_up and node.ready and not node.draining and node.reported_at >= 0.0
        if live != node.live:
            self.live += live - node.live
            node.live = live
        node.open = live and node.serving and not node.closed_reason and not node.health.ejected
        if node.room_cap != UNLIMITED and now >= node.cap_until:
            node.room_cap = UNLIMITED
        node.plain_from = node.penalty_until if node.penalty_until > now else -math.inf
        node.plain_until = node.reported_at + cost.STALE_AFTER
        if self.earmark is node and not node.open:
            self.earmark = self.earmarked = None
        self.settle(node)

    def keep_for(self, ticket: Ticket | None, node: NodeState | None) -> None:
        """Keep ``node`` free for ``ticket`` alone; None for both lets the one that was kept go."""
        old = self.earmark
        self.earmark = node
        self.earmarked = ticket
        if old is not node:
            if old is not None:
                self.settle(old)
            if node is not None:
                self.settle(node)

    def roomy(self, tokens: int) -> list[list[NodeState]]:
        """Buckets whose nodes may have ``tokens`` of room, the roomiest first; no others have."""
        return self.rooms.above(room_level(tokens))

    def correct(self, nodes: list[NodeState]) -> None:
        """These were found in too good a place in ``rooms``."""
        for node in nodes:
            self.rooms.place(node, room_level(node.room))


def capacity_of(node: NodeState) -> int:
    """KV tokens of a node: as reported, else as described."""
    return node.capacity or node.spec.kv_capacity_tokens


def _length_class(tokens: int) -> int:
    at = tokens.bit_length() - 7
    return 0 if at < 0 else at if at < _LENGTHS else _LENGTHS - 1
