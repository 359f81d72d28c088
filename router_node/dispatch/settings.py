"""Settings of the dispatch: plain values, frozen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol


class OutlierLike(Protocol):
    """The keys of ``router.outlier``."""

    @property
    def enabled(self) -> bool: ...
    @property
    def consecutive_failures(self) -> int: ...
    @property
    def failure_share(self) -> float: ...
    @property
    def latency_factor(self) -> float: ...
    @property
    def min_requests(self) -> int: ...
    @property
    def rest(self) -> float: ...
    @property
    def longest_rest(self) -> float: ...
    @property
    def max_ejected_share(self) -> float: ...


class RetrySettings(Protocol):
    """The keys of ``router.retries`` that matter here."""

    @property
    def share(self) -> float: ...
    @property
    def burst(self) -> int: ...


class RouterSettings(Protocol):
    """The keys of the ``router`` section that matter here."""

    @property
    def cache_size(self) -> int: ...
    @property
    def timeout_ms(self) -> float: ...
    @property
    def max_queued(self) -> int: ...
    @property
    def require_session_affinity(self) -> bool: ...
    @property
    def retries(self) -> RetrySettings: ...
    @property
    def outlier(self) -> OutlierLike: ...


@dataclasses.dataclass(frozen=True, slots=True)
class OutlierSettings:
    """When a node rests. Times are seconds."""

    enabled: bool = True
    consecutive_failures: int = 5
    """Failed in a row."""
    failure_share: float = 0.3
    """By so much a node's share of failures must exceed that of the others."""
    latency_factor: float = 5.0
    """So many times longer than the others' its first tokens must take."""
    min_requests: int = 20
    """Before that no shares and means are compared."""
    rest: float = 5.0
    """The first time; doubled each further time in a row."""
    longest_rest: float = 60.0
    max_ejected_share: float = 0.5
    """Of a pool's live nodes, rounded down: a single node is never ejected."""

    @classmethod
    def from_config(cls, keys: OutlierLike) -> OutlierSettings:
        """Settings from ``router.outlier``."""
        return cls(**{field.name: getattr(keys, field.name) for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, slots=True)
class DispatchSettings:
    """What the policy can be told. Times are seconds."""

    cache_size: int = 65_536
    """Sessions remembered, exceptions and others each, and prompt blocks remembered: entries."""
    timeout: float = 10.0
    """The longest wait in the queue."""
    max_queued: int = 1024
    """Requests waiting, all pools together."""
    require_session_affinity: bool = False
    """A session waits for its own node while that node lives, rather than going elsewhere."""
    ageing: float = 2.0
    """So long a wait is worth one level of priority."""
    tenant_weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Share of a tenant in the queue; 1 where none is named."""
    draws: int = 3
    """Nodes drawn from the best buckets for each request, beside those with affinity."""
    pace: float = 0.25
    """While requests wait, a node with more prefill than this ahead of it gets no further one: work that waits in the
    router can still be ordered, work that waits in a node cannot."""
    max_backlog: float = 2.0
    """A node with more prefill than this ahead of it counts as having no room, even when nothing waits: it would give
    back who waited so long there (``inference.max_queue_seconds``), and the wait would have been for nothing."""

    retry_share: float = 0.2
    """So many of a pool's requests may be retries."""
    retry_burst: int = 100
    """And so many of them at once."""
    outlier: OutlierSettings = OutlierSettings()

    def __post_init__(self) -> None:
        if self.cache_size < 16:
            raise ValueError(f"cache_size must be 16 or more, not {self.cache_size}")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be over 0 seconds, not {self.timeout}")
        if self.max_queued < 0 or self.draws < 1:
            raise ValueError("max_queued must be 0 or more, and draws 1 or more")
        if not (self.ageing > 0 and self.pace >= 0 and self.max_backlog > 0):
            raise ValueError("ageing and max_backlog must be over 0, and pace 0 or more")
        if not 0 <= self.retry_share <= 1 or self.retry_burst < 0:
            raise ValueError("retry_share must be 0 to 1, and retry_burst 0 or more")
        for tenant, weight in self.tenant_weights.items():
            if not 0 < weight < math.inf:
                raise ValueError(f"tenant_weights[{tenant!r}] must be over 0, not {weight}")

    @classmethod
    def from_config(cls, router: RouterSettings) -> DispatchSettings:
        """Settings from the ``router`` section of the configuration."""
        return cls(
            cache_size=router.cache_size,
            timeout=router.timeout_ms / 1000.0,
            max_queued=router.max_queued,
            require_session_affinity=router.require_session_affinity,
            retry_share=router.retries.share,
            retry_burst=router.retries.burst,
            outlier=OutlierSettings.from_config(router.outlier),
        )
