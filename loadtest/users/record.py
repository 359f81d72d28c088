"""What a call adds to locust's statistics: the call itself, and rows of their own for what its time is made of.

Of a call named ``chat`` there are ``chat`` (start to end; its size is in tokens), ``chat ttft`` (to the first token),
``chat itl`` (mean between two), ``chat tokens/s`` (of one stream, not ms), ``chat good`` (calls within the SLO: its
rate is the goodput) and ``chat rejected REASON`` (time to the refusal). "Aggregated" counts the first of these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from loadtest.users.call import Call, Outcome

TTFT, ITL, RATE, GOOD, REJECTED, LATE = " ttft", " itl", " tokens/s", " good", " rejected ", "late"
UNFINISHED = "cut off"
OPEN = "load"
"""Type of the rows about the load itself."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good answer is. Seconds."""

    ttft: float = 1.0
    itl: float = 0.1

    def met(self, call: Call, out: Outcome, late: float = 0.0) -> bool:
        """Whether it was good. The pace of a client that reads slowly is its own."""
        if not out.ok or out.first + late > self.ttft:
            return False
        return bool(call.read_delay) or out.itl <= self.itl


class Stats(Protocol):
    """locust's RequestStats, as far as it is used."""

    def get(self, name: str, method: str) -> Any:
        """The row of this name and type."""


class Refused(Exception):
    """A call that failed; locust groups failures by this text, so it is the reason alone."""


class Recorder:
    """Writes outcomes down."""

    def __init__(self, stats: Stats, fire: Callable[..., None], slo: Slo) -> None:
        """``fire`` is that of locust's request event."""
        self._stats, self._fire, self._slo = stats, fire, slo

    def call(self, kind: str, call: Call, out: Outcome, late: float = 0.0) -> None:
        """A call is over. ``late`` is how long after its time it was made, in seconds; it counts as waiting."""
        name = call.name
        error = None if out.ok else Refused(out.reason)
        self._fire(
            request_type=kind,
            name=name,
            response_time=(out.total + late) * 1e3,
            response_length=out.tokens,
            exception=error,
            context={},
        )
        if out.first:
            self._row(kind, name + TTFT, (out.first + late) * 1e3)
        if out.itl and not call.read_delay:
            self._row(kind, name + ITL, out.itl * 1e3)
        if not out.ok:
            self._row(kind, f"{name}{REJECTED}{out.reason}", (out.total + late) * 1e3)
            return
        if out.tokens and out.total > 0:
            self._row(kind, name + RATE, out.tokens / out.total)
        if self._slo.met(call, out, late):
            self._row(kind, name + GOOD, (out.total + late) * 1e3)

    def late(self, seconds: float) -> None:
        """An arrival was made so long after its time: the load's own weakness, not the target's."""
        self._row(OPEN, LATE, seconds * 1e3)

    def unfinished(self) -> None:
        """The end of the test has cut a call off."""
        self._row(OPEN, UNFINISHED, 0.0)

    def dropped(self, cap: int) -> None:
        """An arrival was not made, for so many are in flight."""
        self._fire(
            request_type=OPEN,
            name="arrival",
            response_time=0,
            response_length=0,
            exception=Refused(f"not made: the cap of {cap} in flight (--max-in-flight) is reached"),
            context={},
        )

    def _row(self, kind: str, name: str, value: float) -> None:
        self._stats.get(name, kind).log(value, 0)


def bucket(value: float) -> float:
    """What locust rounds a time to: two digits, also below 10 ms, where tokens follow one another."""
    if value < 10:
        return round(value, 1)
    if value < 100:
        return float(round(value))
    if value < 1000:
        return float(round(value, -1))
    return float(round(value, -2 if value < 10_000 else -3))
