"""The plain data of dispatch: what is asked, what a node is, and what the router thinks of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from router_node.dispatch.kv import KvGroup
from router_node.dispatch.outlier import Health

if TYPE_CHECKING:
    from router_node.dispatch.pool import Pool
    from router_node.dispatch.reservations import Reservation

UNLIMITED: Final = sys.maxsize


class Ask:
    """A request as dispatch sees it. Sizes are tokens, times are seconds of the dispatcher's clock."""

    __slots__ = (
        "arrived",
        "deadline",
        "exact",
        "max_new_tokens",
        "model",
        "n",
        "prefix",
        "priority",
        "prompt_bytes",
        "prompt_tokens",
        "refusals",
        "session",
        "tenant",
    )

    def __init__(
        self,
        model: str,
        *,
        session: bytes = b"",
        tenant: str = "",
        priority: int = 0,
        prompt_tokens: int = 0,
        prompt_bytes: int = 0,
        max_new_tokens: int = 0,
        n: int = 0,
        exact: bool = False,
        prefix: tuple[int, ...] = (),
        arrived: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        self.model = model
        """Model or alias."""
        self.session = session
        """Conversation name, empty for none."""
        self.tenant = tenant
        self.priority = priority
        """Lower is earlier; 0 is the default."""
        self.prompt_tokens = prompt_tokens
        """Length of the prompt, an estimate unless ``exact``; 0 when unknown."""
        self.prompt_bytes = prompt_bytes
        """Length of the prompt's text in bytes; 0 when unknown. Preferred to an estimate in tokens."""
        self.max_new_tokens = max_new_tokens
        """New tokens at most, times the number of sequences; 0 takes the node's default."""
        self.n = n
        """Sequences; 0 when only the product above is known, and then the context length is left to the node."""
        self.exact = exact
        """``prompt_tokens`` was counted, not estimated."""
        self.prefix = prefix
        """Chained hashes of the prompt's byte blocks (``hash_blocks``)."""
        self.arrived = arrived
        """When it arrived; 0 means now."""
        self.refusals = 0
        """Nodes that have refused it for lack of room; from then on it goes where it is sure to be taken, or waits."""
        self.deadline = deadline
        """When the client gives up, None for never."""


class NodeSpec:
    """What a node said it is. 0 means unknown."""

    __slots__ = (
        "aliases",
        "boot_id",
        "default_max_tokens",
        "engine",
        "kv_block_tokens",
        "kv_capacity_tokens",
        "kv_groups",
        "max_num_seqs",
        "max_seq_len",
        "model",
        "quantization",
        "revision",
        "tells_evictions",
    )

    def __init__(
        self,
        model: str,
        *,
        aliases: Sequence[str] = (),
        revision: str = "",
        max_seq_len: int = 0,
        kv_capacity_tokens: int = 0,
        kv_block_tokens: int = 16,
        max_num_seqs: int = 0,
        default_max_tokens: int = 512,
        boot_id: str = "",
        quantization: str = "",
        engine: str = "",
        kv_groups: Sequence[KvGroup] = (),
        tells_evictions: bool = False,
    ) -> None:
        self.model = model
        self.aliases = tuple(aliases)
        self.revision = revision
        self.max_seq_len = max(0, max_seq_len)
        self.kv_capacity_tokens = max(0, kv_capacity_tokens)
        self.kv_block_tokens = max(1, kv_block_tokens)
        self.max_num_seqs = max(0, max_num_seqs)
        self.default_max_tokens = max(1, default_max_tokens)
        self.boot_id = boot_id
        self.quantization = quantization
        self.engine = engine
        self.kv_groups = tuple(kv_groups)
        """Blocks that a sequence takes; empty where it is its tokens in whole blocks."""
        self.tells_evictions = tells_evictions


class NodeState:
    """A node as this router sees it. Written only by ``router_node.dispatch``; ``upstream`` belongs to its owner."""

    __slots__ = (
        "address",
        "awaiting_full",
        "backlog",
        "bad_reports",
        "block",
        "boot_id",
        "cap_until",
        "capacity",
        "closed_reason",
        "decode_rate",
        "draining",
        "free",
        "headroom",
        "health",
        "hit_rate",
        "id",
        "incarnation",
        "inv_rate",
        "link_up",
        "live",
        "mine",
        "open",
        "past_boots",
        "penalty",
        "penalty_span",
        "penalty_until",
        "pending",
        "plain_from",
        "plain_until",
        "pool",
        "prefill_rate",
        "queued",
        "ready",
        "refusals",
        "reported_at",
        "reserved_prompt_tokens",
        "reserved_tokens",
        "room",
        "room_cap",
        "running",
        "seats",
        "sequence",
        "serving",
        "slot",
        "spec",
        "step",
        "summed_counted",
        "summed_prompt",
        "summed_told",
        "trust",
        "uncounted",
        "upstream",
        "used",
        "waiting",
    )

    def __init__(self, node_id: str, address: str, spec: NodeSpec, slot: int, incarnation: int) -> None:
        self.id = node_id
        self.address = address
        self.spec = spec
        self.upstream: Any = None
        self.pool: Pool | None = None
        self.slot = slot
        """Dense small number, unique among the nodes known now."""
        self.incarnation = incarnation
        """Never used twice: what a session's record points at, so that a restarted node's cache is not looked for."""

        # What it last said.
        self.boot_id = ""
        self.past_boots: tuple[str, ...] = ()
        self.sequence = -1
        self.awaiting_full = True
        self.reported_at = -1.0
        self.capacity = 0
        self.headroom = 0
        self.block = spec.kv_block_tokens
        self.queued = 0
        self.running = 0
        self.waiting = 0
        self.hit_rate = 0.0
        self.prefill_rate = 0.0
        self.decode_rate = 0.0
        self.ready = False
        self.draining = False
        self.closed_reason = ""
        self.bad_reports = 0

        # What the router knows by itself.
        self.link_up = False
        self.serving = True
        """By its own health service."""
        self.health = Health()
        """By what its requests have come to."""
        self.uncounted: dict[bytes, Reservation] = {}
        """Reservations that no report has counted, by dispatch id."""
        self.reserved_tokens = 0
        self.reserved_prompt_tokens = 0
        self.mine = 0
        """Requests it was sent that have not ended, counted ones too."""
        self.summed_told = 0
        """These three are what of it is in its pool's sums (``Unseen``)."""
        self.summed_counted = 0
        self.summed_prompt = 0
        self.refusals = 0
        self.room_cap = UNLIMITED
        self.cap_until = 0.0
        self.penalty = 0.0
        self.penalty_span = 1.0
        self.penalty_until = 0.0
        self.trust = 1.0
        """Share of the cached tokens expected of it that its counts have confirmed, 0 to 1."""

        # Derived by Pool.refresh and Pool.settle.
        self.live = False
        """It can be expected to take requests, now or soon: connected, warmed up, not draining."""
        self.open = False
        """Live, and its admission is not shut."""
        self.seats = UNLIMITED
        """Requests it may be sent before its own sequences run out, beside those reserved."""
        self.inv_rate = 0.0
        """Seconds per prompt token."""
        self.used = 0
        """KV tokens in use: what it reported and what is reserved."""
        self.step = 0.0
        """Seconds of one of its decode steps with those that run there."""
        self.pending = 0
        """Of the prompt tokens it reported as queued, those that its cache likely lacks."""
        self.backlog = 0
        """Prompt tokens to compute ahead of a new request: pending and reserved."""
        self.free = 0
        """KV tokens that a new request may take."""
        self.room = -1
        """``free`` where the node takes requests from all comers, else -1."""
        self.plain_from = 0.0
        self.plain_until = 0.0
        """Between the two times its cost needs no correction for penalties or old reports."""

    @property
    def state(self) -> str:
        """ "ready", "starting", "draining", "closed" (its admission is shut), "ejected" or "dark" (no connection)."""
        if not self.link_up:
            return "dark"
        if self.draining:
            return "draining"
        if not self.ready or self.reported_at < 0:
            return "starting"
        if self.closed_reason or not self.serving:
            return "closed"
        return "ejected" if self.health.ejected else "ready"

    @property
    def reservations(self) -> int:
        """Reservations that no report has counted."""
        return len(self.uncounted)

    def need(self, tokens: int) -> int:
        """``tokens`` in whole blocks of this node, in tokens."""
        return tokens + -tokens % self.block


SESSION: Final = "session"
SESSION_RING: Final = "session-ring"
"""A session's first node on the ring, where it is on record elsewhere."""
SESSION_NEXT: Final = "session-next"
SESSION_RING_NEXT: Final = "session-ring-next"
"""A session's second node on the ring, where it is on no record and where it is on record elsewhere."""
PREFIX: Final = "prefix"
RING: Final = "ring"
HEADROOM: Final = "headroom"

Candidate = tuple[NodeState, int, str, bool]
"""A node that was looked at; prompt tokens its cache should hold; why it was looked at; and whether only the ring, and
no record, stands behind the second. A plain tuple: five are made for each request."""
