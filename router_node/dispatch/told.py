"""What a node tells a router, as dispatch reads it: the protocol's own messages, or their plain mirrors."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class UsageLike(Protocol):
    """True counts of a dispatch: ``laya.v1.DispatchUsage``, or ``Usage``."""

    @property
    def dispatch(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...


class EvictionLike(Protocol):
    """What a cache has lost: ``laya.v1.Eviction``, or ``Evicted``."""

    @property
    def dispatch(self) -> str: ...
    @property
    def kept_tokens(self) -> int: ...


class Usage(NamedTuple):
    """The plain mirror of ``laya.v1.DispatchUsage``."""

    dispatch: str
    prompt_tokens: int
    cached_tokens: int


class Evicted(NamedTuple):
    """The plain mirror of ``laya.v1.Eviction``."""

    dispatch: str
    kept_tokens: int


class ReportLike(Protocol):
    """A report: ``laya.v1.WatchResponse`` itself, or ``Report``."""

    @property
    def sequence(self) -> int: ...
    @property
    def boot_id(self) -> str: ...
    @property
    def kv_capacity_tokens(self) -> int: ...
    @property
    def headroom_tokens(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def queued_prefill_tokens(self) -> int: ...
    @property
    def prefix_hit_rate(self) -> float: ...
    @property
    def prefill_tokens_per_second(self) -> float: ...
    @property
    def decode_tokens_per_second(self) -> float: ...
    @property
    def counted_dispatches(self) -> Iterable[str | bytes]: ...
    @property
    def full(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def closed_reason(self) -> str: ...
    @property
    def usages(self) -> Iterable[UsageLike]: ...
    @property
    def evictions(self) -> Iterable[EvictionLike]: ...


class Report:
    """A node's statement of its load; the plain mirror of ``laya.v1.WatchResponse``, with its units."""

    __slots__ = (
        "boot_id",
        "closed_reason",
        "counted_dispatches",
        "decode_tokens_per_second",
        "draining",
        "evictions",
        "full",
        "headroom_tokens",
        "kv_capacity_tokens",
        "prefill_tokens_per_second",
        "prefix_hit_rate",
        "queued_prefill_tokens",
        "ready",
        "running",
        "sequence",
        "usages",
        "waiting",
    )

    def __init__(
        self,
        sequence: int,
        boot_id: str = "",
        kv_capacity_tokens: int = 0,
        headroom_tokens: int = 0,
        *,
        running: int = 0,
        waiting: int = 0,
        queued_prefill_tokens: int = 0,
        prefix_hit_rate: float = 0.0,
        prefill_tokens_per_second: float = 0.0,
        decode_tokens_per_second: float = 0.0,
        counted_dispatches: Sequence[str | bytes] = (),
        full: bool = False,
        draining: bool = False,
        ready: bool = True,
        closed_reason: str = "",
        usages: Sequence[UsageLike] = (),
        evictions: Sequence[EvictionLike] = (),
    ) -> None:
        self.sequence = sequence
        self.boot_id = boot_id
        self.kv_capacity_tokens = kv_capacity_tokens
        self.headroom_tokens = headroom_tokens
        self.running = running
        self.waiting = waiting
        self.queued_prefill_tokens = queued_prefill_tokens
        self.prefix_hit_rate = prefix_hit_rate
        self.prefill_tokens_per_second = prefill_tokens_per_second
        self.decode_tokens_per_second = decode_tokens_per_second
        self.counted_dispatches = counted_dispatches
        self.full = full
        self.draining = draining
        self.ready = ready
        self.closed_reason = closed_reason
        self.usages = usages
        self.evictions = evictions


class Verdict(enum.Enum):
    """What became of a report."""

    ACCEPTED = "accepted"
    STALE = "stale"  # older than one already seen: its dispatch ids count, its numbers do not
    GAP = "gap"  # accepted, but one before it was lost: only a full report makes the count exact again
    WAITING_FULL = "waiting_full"  # a watch begins with a full report; until it comes nothing else is believed
    UNKNOWN = "unknown"  # no such node
