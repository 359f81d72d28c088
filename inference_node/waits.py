"""How long until there is room: what is in use, over the mean time that it is kept. Pure.

By Little's law that is the rate at which it comes free, whatever the load was when the time was measured; a rate
counted over idle minutes would call every first burst hopeless.
"""

from __future__ import annotations

from collections.abc import Callable

from inference_node.rates import Ratio

SHORTEST, LONGEST, UNKNOWN = 0.1, 30.0, 1.0  # seconds: bounds of a hint, and the hint while nothing is known
MOST_CACHED = 0.9  # share of the prompts' tokens that the cache is trusted to save at most


class Turnover:
    """The mean time that things are kept, by amount, of late."""

    __slots__ = ("_kept",)

    def __init__(self, window: float) -> None:
        """``window`` is how much must come free until older times have faded."""
        self._kept = Ratio(window)

    def add(self, amount: float, seconds: float) -> None:
        """So much was kept so long."""
        self._kept.add(amount * max(seconds, 1e-6), amount)

    def per_second(self, in_use: float) -> float:
        """What comes free a second while so much is in use; 0 while unknown."""
        kept = self._kept.value
        return in_use / kept if kept > 0.0 else 0.0


class Waits:
    """Estimates of one node."""

    __slots__ = ("_blocks", "_cached", "_prefill", "_rate", "_sequences")

    def __init__(self, capacity_blocks: int, max_sequences: int, prefill_tokens: int) -> None:
        self._blocks = Turnover(2.0 * capacity_blocks)
        self._sequences = Turnover(2.0 * max_sequences)
        self._prefill = Turnover(16.0 * prefill_tokens)
        self._rate: Callable[[], float] | None = None
        self._cached: Callable[[], float] | None = None

    def measure(self, prefill_rate: Callable[[], float], cached_share: Callable[[], float] | None = None) -> None:
        """Ask these for the engine's own prefill rate, in computed tokens a second, 0 while it does not know, and for
        the share of prompt tokens that its cache has saved it of late, 0 to 1.
        """
        self._rate = prefill_rate
        self._cached = cached_share

    def ended(self, blocks: int, sequences: int, seconds: float) -> None:
        """A request ended that held so much so long."""
        self._blocks.add(blocks, seconds)
        self._sequences.add(sequences, seconds)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A prompt was computed so long after it was admitted."""
        self._prefill.add(tokens, seconds)

    @property
    def measured_rate(self) -> float:
        """Prompt tokens a second that go through the engine, those its cache saves it among them; 0 while unknown.

        What waits is counted in whole prompts, for only the engine knows what it will find of each.
        """
        if self._rate is None:
            return 0.0
        share = self._cached() if self._cached is not None else 0.0
        return self._rate() / (1.0 - min(max(share, 0.0), MOST_CACHED))

    def for_blocks(self, missing: int, held: int) -> float | None:
        """Seconds until so many blocks are free; None while unknown."""
        return _seconds(missing, self._blocks.per_second(held))

    def for_sequences(self, missing: int, running: int) -> float | None:
        """Seconds until so many sequences have ended; None while unknown."""
        return _seconds(missing, self._sequences.per_second(running))

    def for_prefill(self, excess: int, in_flight: int) -> float | None:
        """Seconds until so many prompt tokens are computed; None while unknown."""
        return _seconds(excess, self.measured_rate or self._prefill.per_second(in_flight))


def hint(seconds: float | None) -> float:
    """A wait as a retry hint, in seconds."""
    return UNKNOWN if seconds is None else min(max(seconds, SHORTEST), LONGEST)


def longest(*waits: float | None) -> float | None:
    """The longest of several waits; None when one of them is not known."""
    known = [wait for wait in waits if wait is not None]
    return max(known) if len(known) == len(waits) else None


def _seconds(amount: int, rate: float) -> float | None:
    if amount <= 0:
        return 0.0
    return amount / rate if rate > 1e-9 else None
