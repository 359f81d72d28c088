"""How long to wait before trying again."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Doubles from ``first`` to ``most`` seconds; each wait is drawn from its upper half, so that many drift apart."""

    __slots__ = ("_first", "_most", "_next", "_random")

    def __init__(self, first: float, most: float, draw: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._next = first
        self._random = draw

    def next(self) -> float:
        """Seconds to wait now; the next wait is about twice as long."""
        wait = self._next * (0.5 + 0.5 * self._random())
        self._next = min(self._most, self._next * 2)
        return wait

    def reset(self) -> None:
        """It worked: begin again at the first wait."""
        self._next = self._first
