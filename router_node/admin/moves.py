"""What the router counts of streams that go on elsewhere: how moves ended, how long they took, what may not move."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import msgspec

MAX_REASONS: Final = 64
OTHER: Final = "other"

# Upper bounds of the histogram of stalls, in seconds; the last bucket is open.
STALL_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)


class MovesSample(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's counts at one moment."""

    outcomes: dict[str, int] = {}
    kept: dict[str, int] = {}
    stall_buckets: list[int] = []
    stall_seconds: float = 0.0
    poisonous: int = 0
    journals: int = 0
    journal_bytes: int = 0


class MoveCounts:
    """``poisonous``, ``journals`` and ``journal_bytes`` are their owners' to set."""

    __slots__ = ("_buckets", "_kept", "_outcomes", "_seconds", "journal_bytes", "journals", "poisonous")

    def __init__(self) -> None:
        self._outcomes: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._buckets = [0] * (len(STALL_BOUNDS) + 1)
        self._seconds = 0.0
        self.poisonous = self.journals = self.journal_bytes = 0

    def moved(self, outcome: str) -> None:
        """A stream lost its node, and this is how that ended."""
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1

    def stalled(self, seconds: float) -> None:
        """A stream went on after so long."""
        self._buckets[bisect_left(STALL_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def keeps(self, reason: str) -> None:
        """A stream is not migratable, or no longer; reasons beyond the first 64 are counted together."""
        if reason not in self._kept and len(self._kept) >= MAX_REASONS:
            reason = OTHER
        self._kept[reason] = self._kept.get(reason, 0) + 1

    def sample(self) -> MovesSample:
        """The counts as they stand."""
        return MovesSample(
            outcomes=dict(self._outcomes),
            kept=dict(self._kept),
            stall_buckets=list(self._buckets),
            stall_seconds=self._seconds,
            poisonous=self.poisonous,
            journals=self.journals,
            journal_bytes=self.journal_bytes,
        )


def total(samples: Iterable[MovesSample]) -> MovesSample:
    """The counts of several workers as one."""
    outcomes: dict[str, int] = {}
    kept: dict[str, int] = {}
    buckets = [0] * (len(STALL_BOUNDS) + 1)
    seconds = 0.0
    poisonous = journals = journal_bytes = 0
    for one in samples:
        for into, more in ((outcomes, one.outcomes), (kept, one.kept)):
            for name, count in more.items():
                into[name] = into.get(name, 0) + count
        for i, count in enumerate(one.stall_buckets[: len(buckets)]):
            buckets[i] += count
        seconds += one.stall_seconds
        poisonous += one.poisonous
        journals += one.journals
        journal_bytes += one.journal_bytes
    return MovesSample(
        outcomes=outcomes,
        kept=kept,
        stall_buckets=buckets,
        stall_seconds=seconds,
        poisonous=poisonous,
        journals=journals,
        journal_bytes=journal_bytes,
    )
