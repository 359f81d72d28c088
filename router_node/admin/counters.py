"""What the router counts while it works.

The request path adds to plain integers, a fraction of a microsecond each. Every map is bounded: what does not fit is
counted under "other".
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from router_node.admin import moves
from router_node.admin.metrics import OTHER, ROUTING_BOUNDS, Snapshot
from router_node.admin.stages import StageTimes
from shared.errors import Code

MAX_METHODS: Final = 64
MAX_EVENTS: Final = 64
_OTHER: Final = OTHER
_BOUNDS: Final = ROUTING_BOUNDS
_find: Final = bisect_left
_FIRST: Final = 0.000_01  # the first two bounds
_SECOND: Final = 0.000_025


class RouterMetrics:
    """The counters of one worker. ``in_flight`` is the owner's to raise and lower: requests in the router now."""

    __slots__ = ("_buckets", "_events", "_methods", "_requests", "_seconds", "in_flight", "moves", "stages")

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests: dict[tuple[str, int], int] = {}
        self._methods: set[str] = set()
        self._events: dict[str, int] = {}
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0
        self.stages = StageTimes()
        self.moves = moves.MoveCounts()

    def finished(self, method: str, code: int) -> None:
        """Count a finished request. ``code`` is a gRPC code, or an HTTP status of 100 and over."""
        try:
            self._requests[method, code] += 1
        except KeyError:
            self._first(method, code)

    def _first(self, method: str, code: int) -> None:
        if method not in self._methods:
            if len(self._methods) >= MAX_METHODS:
                method = _OTHER
            else:
                self._methods.add(method)
        if not (0 <= code <= 16 or 100 <= code <= 599):
            code = int(Code.UNKNOWN)
        self._requests[method, code] = self._requests.get((method, code), 0) + 1

    def routed(self, seconds: float) -> None:
        """Record the router's own time before a request's first byte left for its node."""
        if seconds <= _SECOND:  # as nearly always, and without a search
            self._buckets[0 if seconds <= _FIRST else 1] += 1
        else:
            self._buckets[_find(_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def count(self, event: str) -> None:
        """Count a rare event by its name; names beyond the first 64 are counted together."""
        if event not in self._events and len(self._events) >= MAX_EVENTS:
            event = _OTHER
        self._events[event] = self._events.get(event, 0) + 1

    def snapshot(self) -> Snapshot:
        """The counters as they stand; what other parts know is filled in by ``collect``."""
        return Snapshot(
            requests=[(method, code, count) for (method, code), count in self._requests.items()],
            in_flight=self.in_flight,
            routing_buckets=list(self._buckets),
            routing_seconds=self._seconds,
            stage_buckets=self.stages.buckets(),
            stage_seconds=self.stages.seconds(),
            events=dict(self._events),
            moves=self.moves.sample(),
        )
