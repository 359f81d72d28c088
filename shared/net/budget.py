"""How much a peer may make us do that is not a request."""

from __future__ import annotations

from shared.net.settings import Budget, NetSettings


class Meter:
    """A token bucket that looks at the clock only when it runs dry."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, budget: Budget, now: float) -> None:
        self._burst = budget.burst
        self._rate = budget.rate
        self._left = float(budget.burst)
        self._at = now

    def spend(self, now: float) -> bool:
        """Take one; False when there is none left. ``now`` is in seconds."""
        if self._left >= 1.0:
            self._left -= 1.0
            return True
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def earn(self, n: float) -> None:
        """Add to what is left, up to the burst."""
        self._left = min(self._burst, self._left + n)


class Budgets:
    """The meters of one connection."""

    __slots__ = ("hasty_resets", "oddities", "pings", "resets", "settings", "windows")

    def __init__(self, settings: NetSettings, now: float) -> None:
        self.pings = Meter(settings.pings, now)
        self.settings = Meter(settings.settings_frames, now)
        self.windows = Meter(settings.window_updates, now)
        self.resets = Meter(settings.resets, now)
        self.hasty_resets = Meter(settings.hasty_resets, now)
        self.oddities = Meter(settings.oddities, now)
