"""What happened in a run, as numbers."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from loadtest.sim.cluster import SimNode
from loadtest.sim.jobs import Job


@dataclass(frozen=True, slots=True)
class Slo:
    """What counts as good: seconds to the first token, and mean seconds between two."""

    ttft: float = 2.0
    itl: float = 0.1


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. Times are seconds, shares 0 to 1."""

    requests: int
    served: int
    rejects: int
    lost: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    itl_mean: float
    itl_p99: float
    goodput: float
    """Requests within the SLO for each second in which requests arrived."""
    good_share: float
    hit_rate: float
    kv_mean: float
    kv_peak: float
    """The largest share of its KV that any node had promised at any time that was looked at."""
    kv_imbalance: float
    """Mean over time of the fullest node's share less the mean's."""
    preemptions: int
    queued: int
    node_refusals: int
    events: int
    wall_seconds: float
    virtual_seconds: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


class Record:
    """Collects one run. The first ``warm_up`` requests are served but not counted in the times."""

    def __init__(self, count: int, warm_up: int, slo: Slo) -> None:
        self.count = count
        self.slo = slo
        self.settled = 0
        """Requests served, refused or lost."""
        self.queued = 0
        """Requests that waited in a router's queue."""
        self.node_refusals = 0
        self.reasons: Counter[str] = Counter()
        self._warm_up = warm_up
        self._ttft = array("d")
        self._itl = array("d")
        self._good = 0
        self._served = 0
        self._lost = 0
        self._prompt = 0
        self._cached = 0
        self._last_end = 0.0
        self._first_arrival = math.inf
        self._last_arrival = 0.0
        self._kv_sum = 0.0
        self._kv_peak = 0.0
        self._kv_imbalance = 0.0
        self._looks = 0

    def served(self, job: Job, began: float, ended: float, cached: int) -> None:
        """A request was answered in full."""
        self.settled += 1
        self._served += 1
        self._last_end = ended
        if job.number < self._warm_up:
            return
        self._first_arrival = min(self._first_arrival, job.arrived)
        self._last_arrival = max(self._last_arrival, job.arrived)
        ttft = began - job.arrived
        itl = (ended - began) / (job.output - 1) if job.output > 1 else 0.0
        self._ttft.append(ttft)
        if job.output > 1:
            self._itl.append(itl)
        self._good += ttft <= self.slo.ttft and itl <= self.slo.itl
        self._prompt += job.prompt
        self._cached += cached

    def refused(self, job: Job, reason: str) -> None:
        """A request was refused for good."""
        self.settled += 1
        self.reasons[reason] += 1

    def lost(self, job: Job) -> None:
        """A request's node died in the middle of the answer."""
        self.settled += 1
        self._lost += 1

    def look(self, nodes: Iterable[SimNode]) -> None:
        """Note how full the nodes are."""
        shares = [node.held for node in nodes if node.alive]
        if not shares:
            return
        mean, top = sum(shares) / len(shares), max(shares)
        self._looks += 1
        self._kv_sum += mean
        self._kv_imbalance += top - mean
        self._kv_peak = max(self._kv_peak, top)

    def held(self, share: float) -> None:
        """A node has just promised so much of its KV."""
        self._kv_peak = max(self._kv_peak, share)

    def figures(self, nodes: Sequence[SimNode], events: int, wall: float) -> Figures:
        """The sums."""
        ttft, itl = sorted(self._ttft), self._itl
        rejects = sum(self.reasons.values())
        looks = max(1, self._looks)
        span = max(1e-9, self._last_arrival - min(self._first_arrival, self._last_arrival))
        counted = max(1, self.settled - self._warm_up)
        return Figures(
            requests=self.settled,
            served=self._served,
            rejects=rejects,
            lost=self._lost,
            ttft_mean=_mean(ttft),
            ttft_p50=quantile(ttft, 0.5),
            ttft_p99=quantile(ttft, 0.99),
            itl_mean=_mean(itl),
            itl_p99=_gap(nodes, 0.99),
            goodput=self._good / span,
            good_share=self._good / counted,
            hit_rate=self._cached / max(1, self._prompt),
            kv_mean=self._kv_sum / looks,
            kv_peak=self._kv_peak,
            kv_imbalance=self._kv_imbalance / looks,
            preemptions=sum(node.preemptions for node in nodes),
            queued=self.queued,
            node_refusals=self.node_refusals,
            events=events,
            wall_seconds=wall,
            virtual_seconds=self._last_end,
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted values; NaN of none."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def _gap(nodes: Iterable[SimNode], share: float) -> float:
    """A quantile of all times between two tokens, in seconds."""
    gaps: Counter[int] = Counter()
    for node in nodes:
        gaps.update(node.engine.gaps)
    left = share * gaps.total()
    for gap in sorted(gaps):
        left -= gaps[gap]
        if left <= 0:
            return gap / 1e4
    return math.nan


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
