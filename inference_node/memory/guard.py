"""When a node sheds load to save its machine: a decision on plain readings. Pure.

A reading at or above its soft limit closes; it must have fallen by the hysteresis, and stayed there a while, before
the node opens again. A reading that is not there counts for nothing. Nothing is ever killed: what runs goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from inference_node.memory.units import short


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU. Shares are 0 to 1 of what it has; None is what it does not tell."""

    index: int
    memory: float | None = None
    celsius: float | None = None
    slowdown_celsius: float | None = None
    """Where its driver slows it down."""
    power: float | None = None
    lost: bool = False
    """It answered once and does not any more: it has fallen off the bus."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read at one moment; None is what the machine does not tell."""

    memory: float | None = None
    """Share of the tightest memory limit that is in use and cannot be given back at once."""
    memory_limit: int | None = None
    """That limit in bytes."""
    stall: float | None = None
    """Percent of the last ten seconds in which every task waited for memory."""
    rss: int | None = None
    """Resident bytes of this process and all below it."""
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Soft limits in the readings' units; 0 switches one off."""

    memory: float = 0.95
    stall: float = 25.0
    rss: int = 0
    gpu_memory: float = 0.0
    gpu_celsius: float = 0.0
    """0 takes ``SLOWDOWN_MARGIN`` below where the driver slows the GPU down."""
    gpu_power: float = 0.0
    hysteresis: float = 0.02
    """Share of a limit by which its reading must fall; of a share of memory at most half of what the limit leaves."""
    resume_seconds: float = 3.0


SLOWDOWN_MARGIN = 2.0  # degrees


@dataclass(frozen=True, slots=True)
class _Check:
    """One reading beside its limit, and what to say when it is there."""

    name: str
    value: float
    limit: float
    words: str
    gpu: int = -1
    most: float = math.inf  # that the reading can be

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.gpu

    def high(self) -> bool:
        return self.value >= self.limit

    def low(self, hysteresis: float) -> bool:
        # A node whose memory is meant to be nearly full must be able to open again.
        return self.value < self.limit - min(hysteresis * self.limit, (self.most - self.limit) / 2.0)


class Guard:
    """Remembers whether the node sheds, and why."""

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self.reason = ""
        """Why load is shed, in a sentence without its stop; empty while the node is open."""
        self.cause = ""
        """The same in a word, for a metric: memory, stall, rss, gpu_memory, gpu_celsius, gpu_power, gpu_lost."""
        self._tripped: set[tuple[str, int]] = set()  # what has been at its limit since load is shed
        self._calm_since: float | None = None

    @property
    def shedding(self) -> bool:
        """Whether nothing new should be taken."""
        return bool(self.cause)

    def look(self, readings: Readings, now: float) -> bool:
        """Decide anew at ``now`` (seconds); whether ``reason`` has changed.

        While the same limit is what closes, the reason stays as it was: a report need not follow every degree.
        """
        checks = list(self._checks(readings))
        high = [check for check in checks if check.high()]
        if high:
            self._calm_since = None
            self._tripped.update(check.key for check in high)
            if any(check.name == self.cause for check in high):
                return False
            self.cause, self.reason = high[0].name, high[0].words
            return True
        if not self.shedding:
            return False
        if not all(check.low(self.settings.hysteresis) for check in checks if check.key in self._tripped):
            self._calm_since = None
            return False
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.settings.resume_seconds:
            return False
        self.cause = self.reason = ""
        self._tripped.clear()
        self._calm_since = None
        return True

    def _checks(self, now: Readings) -> Iterator[_Check]:
        s = self.settings
        if s.memory and now.memory is not None:
            of = f" of {short(now.memory_limit)}" if now.memory_limit else ""
            words = f"memory is short: {_percent(now.memory)}{of} in use (limit {_percent(s.memory)})"
            yield _Check("memory", now.memory, s.memory, words, most=1.0)
        if s.stall and now.stall is not None:
            words = f"memory is short: all tasks wait for it {now.stall:.0f} % of the time (limit {s.stall:.0f} %)"
            yield _Check("stall", now.stall, s.stall, words)
        if s.rss and now.rss is not None:
            words = f"the node and its engine take {short(now.rss)} of memory (limit {short(s.rss)})"
            yield _Check("rss", now.rss, s.rss, words)
        for gpu in now.gpus:
            yield from self._gpu_checks(gpu)

    def _gpu_checks(self, gpu: GpuReading) -> Iterator[_Check]:
        s, name = self.settings, f"GPU {gpu.index}"
        if gpu.lost:
            yield _Check("gpu_lost", 1.0, 1.0, f"{name} does not answer any more; look at the machine", gpu.index)
        if s.gpu_memory and gpu.memory is not None:
            words = f"the memory of {name} is short: {_percent(gpu.memory)} in use (limit {_percent(s.gpu_memory)})"
            yield _Check("gpu_memory", gpu.memory, s.gpu_memory, words, gpu.index, 1.0)
        limit = s.gpu_celsius or (gpu.slowdown_celsius or 0.0) - SLOWDOWN_MARGIN
        if limit > 0 and gpu.celsius is not None:
            words = f"{name} is hot: {gpu.celsius:.0f} °C (limit {limit:.0f} °C)"
            yield _Check("gpu_celsius", gpu.celsius, limit, words, gpu.index)
        if s.gpu_power and gpu.power is not None:
            words = f"{name} draws {_percent(gpu.power)} of its power limit (limit {_percent(s.gpu_power)})"
            yield _Check("gpu_power", gpu.power, s.gpu_power, words, gpu.index)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
