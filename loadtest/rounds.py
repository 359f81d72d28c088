"""How the targets of a benchmark take turns, and what keeps all of it within a budget.

In each round another target begins, and each is under load for a moment before it is measured: its processes slept
while the others had their turn, and the first calls after that measure the scheduler rather than the target.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

WARM_LAP: Final = 0.2  # seconds under load before each measured round
_T = TypeVar("_T")


class Budget:
    """Seconds for all that a command does. What does not fit is left out, and told once for each name."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.left_out: list[str] = []

    @property
    def left(self) -> float:
        """Seconds that are left, 0 or more."""
        return max(0.0, self._until - time.monotonic())

    def allows(self, what: str, seconds: float) -> bool:
        """Whether so many seconds more fit; says on stderr what is left out where not."""
        if time.monotonic() + seconds <= self._until:
            return True
        if what not in self.left_out:
            self.left_out.append(what)
            print(f"{what}: the budget allows no (further) round", file=sys.stderr)
        return False


def turns(targets: Sequence[_T], rounds: int, budget: Budget, what: str, seconds: float) -> Iterator[_T]:
    """Every target once a round, each first as often as the others; ends where a whole round does not fit.

    ``seconds`` is what a turn takes at least; what the last round took is what the next one is expected to.
    """
    takes = seconds * len(targets)
    for number in range(rounds):
        if not budget.allows(what, takes):
            return
        first, began = number % len(targets), time.monotonic()
        yield from (*targets[first:], *targets[:first])
        takes = max(takes, time.monotonic() - began)
