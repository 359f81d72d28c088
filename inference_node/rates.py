"""Rates and ratios over a recent window that fades exponentially. Pure: the caller brings the time."""

from __future__ import annotations

import math


class Rate:
    """How much comes a second, older amounts counting for less; the window is ``tau`` seconds."""

    __slots__ = ("_amount", "_at", "_since", "_tau")

    def __init__(self, tau: float, now: float) -> None:
        self._tau = tau
        self._amount = 0.0
        self._at = now
        self._since = now

    def add(self, amount: float, now: float) -> None:
        """So much came at this time."""
        self._amount = self._faded(now) + amount
        self._at = max(self._at, now)

    def per_second(self, now: float) -> float:
        """The rate; a window that has not been filled yet counts for its true length."""
        age = max(now - self._since, 1e-3)
        return self._faded(now) / (self._tau * -math.expm1(-age / self._tau))

    def seconds_for(self, amount: float, now: float) -> float | None:
        """How long so much takes at this rate: 0 for nothing, None while the rate is not known."""
        if amount <= 0:
            return 0.0
        rate = self.per_second(now)
        return amount / rate if rate > 1e-9 else None

    def _faded(self, now: float) -> float:
        return self._amount * math.exp(-max(0.0, now - self._at) / self._tau)


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
