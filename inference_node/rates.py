"""Ratios of counters over a recent window that fades exponentially. Pure."""

from __future__ import annotations

import math


class Ratio:
    """Sum of one counter's growth over another's, both fading with the second: tokens over busy seconds, hits over
    queries. ``tau`` is in units of the second, so idle time forgets nothing."""

    __slots__ = ("_tau", "_top", "_under")

    def __init__(self, tau: float) -> None:
        self._tau = tau
        self._top = 0.0
        self._under = 0.0

    def add(self, top: float, under: float) -> None:
        """Both counters grew by so much. Negative or undefined growth (a counter was reset) is left out."""
        if not (top >= 0.0 and under > 0.0) or math.isinf(top) or math.isinf(under):
            return
        keep = math.exp(-under / self._tau)
        self._top = self._top * keep + top
        self._under = self._under * keep + under

    @property
    def value(self) -> float:
        """The ratio, 0 while nothing is known."""
        return self._top / self._under if self._under > 0.0 else 0.0
