"""When calls come in an open loop: by the clock, whether or not earlier ones have ended."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

KINDS = ("closed", "poisson", "constant", "trace")
T = TypeVar("T")


class Arrivals(ABC):
    """Times between one call and the next, in seconds."""

    @abstractmethod
    def gap(self) -> float:
        """From the last call, or from the start, to the next one."""


class Poisson(Arrivals):
    """Independent calls; many such sources together are one of their summed rate."""

    def __init__(self, rate: float, rng: random.Random) -> None:
        self._rate, self._rng = rate, rng

    def gap(self) -> float:
        """Exponentially distributed."""
        return self._rng.expovariate(self._rate)


class Constant(Arrivals):
    """Even spacing; the first call comes at a random part of it, so that many sources do not beat as one."""

    def __init__(self, rate: float, rng: random.Random) -> None:
        self._rate = rate
        self._first = rng.random()

    def gap(self) -> float:
        """The same every time but for the first."""
        share, self._first = self._first, 1.0
        return share / self._rate


def arrivals(kind: str, rate: float, rng: random.Random) -> Arrivals:
    """A source of so many calls a second. Raises ValueError."""
    if not 0 < rate <= 1e5:
        raise ValueError(f"--rate: {rate:g} is not above 0 and at most 100000 calls a second for each user")
    return Constant(rate, rng) if kind == "constant" else Poisson(rate, rng)


class Gate:
    """Counts what is in flight, and refuses past a cap: what is refused is a call that was not made, and is said."""

    __slots__ = ("cap", "in_flight", "most", "refused")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.in_flight = 0
        self.most = 0
        self.refused = 0

    def enter(self) -> bool:
        """Take a place; False when there is none."""
        if self.in_flight >= self.cap:
            self.refused += 1
            return False
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        return True

    def leave(self) -> None:
        """Give the place back."""
        self.in_flight -= 1


class Feed(Generic[T]):
    """Hands out timed rows, in order, to whoever comes; of ``parts`` feeds each has every so-manyeth row."""

    def __init__(self, rows: Iterable[tuple[float, T]], part: int = 0, parts: int = 1) -> None:
        """``rows`` are seconds from the start, and what is due then."""
        self._rows = iter(rows)
        self._part, self._parts = part % parts, parts
        self._number = -1
        self._back: list[tuple[float, T]] = []
        self.held = 0
        """Rows that somebody has and has not begun with."""

    def next(self) -> tuple[float, T] | None:
        """The next row; None when there are no more."""
        if self._back:
            self.held += 1
            return self._back.pop()
        for row in self._rows:
            self._number += 1
            if self._number % self._parts == self._part:
                self.held += 1
                return row
        return None

    def begun(self) -> None:
        """Somebody has begun with a row."""
        self.held -= 1

    def put_back(self, row: tuple[float, T]) -> None:
        """Somebody else has to do this one."""
        self.held -= 1
        self._back.append(row)
