"""How many users there are over time: six shapes as functions of the share of the time that has passed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

USERS = 10
"""Users of a shape where --users names none."""
MOST_STARTS = 100.0
"""Users started or stopped a second: locust does badly with more."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A curve, as shares of ``--users`` and of the time; and the time it takes where ``--run-time`` says nothing."""

    about: str
    seconds: float
    curve: Callable[[float], float]

    def users(self, passed: float, seconds: float, most: int) -> int | None:
        """Users after so many seconds; None once it is over."""
        if passed >= seconds:
            return None
        return max(1, round(most * self.curve(passed / seconds)))


def _spike(at: float) -> float:
    return 5.0 if 0.3 <= at < 0.4 or 0.7 <= at < 0.75 else 1.0


def _stairs(at: float) -> float:
    return (math.floor(at * 5) + 1) / 5


def _soak(at: float) -> float:
    return min(1.0, at * 50)  # up within the first fiftieth


def _overload(at: float) -> float:
    return 3.0 if 1 / 3 <= at < 2 / 3 else 1.0


SHAPES = {
    "ramp": Shape("from one user to --users, evenly", 300, lambda at: at),
    "steady": Shape("--users from the first second", 300, lambda at: 1.0),
    "spike": Shape("--users, and five times as many twice, for a tenth and a twentieth of the time", 300, _spike),
    "stairs": Shape("five steps of a fifth of --users", 600, _stairs),
    "soak": Shape("--users for hours", 4 * 3600, _soak),
    "overload": Shape("--users, three times as many for the middle third, and --users again", 300, _overload),
}


def start_rate(now: int, before: int) -> float:
    """Users to start or stop a second, so that a step is over at once."""
    return min(MOST_STARTS, float(max(1, abs(now - before))))
