"""Where a request's time goes in the router: histograms by stage, from a sample of the requests.

=============  ===========================================================================================
stage          from, to
=============  ===========================================================================================
``match``      arrival, a node chosen: the router's own work (checks, key, rules, dispatch)
``queue``      no node with room, one with room
``relay_in``   a node chosen, the request's first byte on its way there
``node``       that, the node's answer: its first byte, or its last where it is streamed
``first``      that, the first byte of a streamed answer
``relay_out``  the answer in the router, its last byte with the client
=============  ===========================================================================================

Waiting for a client's bytes is in none of them. One request in ``EVERY`` is timed: looking at the clock for all of
them would cost more than some of the stages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

STAGES: Final = ("match", "queue", "relay_in", "node", "first", "relay_out")
EVERY: Final = 17  # odd, so that it never keeps step with clients that send in eights or in sixty-fours

# Upper bounds of the buckets in seconds, 1 us to 50 s; the last bucket is open.
BOUNDS: Final = tuple(round(step * 10.0**power, 9) for power in range(-6, 2) for step in (1.0, 2.0, 5.0))


class StageTimes:
    """The histograms of one worker; a fraction of a microsecond for each time that is added."""

    __slots__ = ("_buckets", "_seconds")

    def __init__(self) -> None:
        self._buckets = {stage: [0] * (len(BOUNDS) + 1) for stage in STAGES}
        self._seconds = dict.fromkeys(STAGES, 0.0)

    def add(self, stage: str, seconds: float) -> None:
        """One of ``STAGES`` took so long."""
        self._buckets[stage][bisect_left(BOUNDS, seconds)] += 1
        self._seconds[stage] += seconds

    def buckets(self) -> dict[str, list[int]]:
        """Times in each bucket, by stage."""
        return {stage: list(counts) for stage, counts in self._buckets.items()}

    def seconds(self) -> dict[str, float]:
        """Sums, by stage."""
        return dict(self._seconds)


def quantile(share: float, counts: Sequence[int], bounds: Sequence[float] = BOUNDS) -> float:
    """The value below which a share of the times lies, straight between a bucket's bounds; NaN without times."""
    wanted = share * sum(counts)
    if not wanted:
        return float("nan")
    reached = 0.0
    for i, count in enumerate(counts):
        if count and reached + count >= wanted:
            low = bounds[i - 1] if i else 0.0
            high = bounds[i] if i < len(bounds) else low
            return low + (high - low) * (wanted - reached) / count
        reached += count
    return bounds[-1]


def merge(into: dict[str, list[int]], more: Mapping[str, Sequence[int]]) -> None:
    """Add one worker's buckets to those of others."""
    for stage, counts in more.items():
        there = into.setdefault(stage, [0] * len(counts))
        for i, count in enumerate(counts[: len(there)]):
            there[i] += count
