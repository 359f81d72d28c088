"""How many of a pool's requests may be sent to a second node: a share of all, and a few more at once.

Without a bound a pool that fails would be asked three times for each request, just when it can bear it least. The
bucket fills by a share of the requests that are sent, so it costs them nothing: it looks at their number when asked.
"""

from __future__ import annotations


class RetryBudget:
    """The bucket of one pool. ``share`` of the requests may be retries, ``burst`` of them at once."""

    __slots__ = ("_burst", "_left", "_seen", "_share", "denied")

    def __init__(self, share: float, burst: int) -> None:
        self._share = share
        self._burst = float(burst)
        self._left = float(burst)
        self._seen = 0
        self.denied = 0
        """Retries that were not allowed."""

    def take(self, sent: int) -> bool:
        """One retry, of a pool that has been sent so many requests; False when it would be one too many."""
        left = min(self._burst, self._left + (sent - self._seen) * self._share)
        self._seen = sent
        if left < 1.0:
            self._left = left
            self.denied += 1
            return False
        self._left = left - 1.0
        return True
