"""What the router's and the node's trace of one request have in common: its place, and seconds of a clock as times."""

from __future__ import annotations

import time

from shared.tracing.context import Context, new_id
from shared.tracing.exporter import Exporter
from shared.tracing.span import SERVER, Event, Span, Value


class RequestTrace:
    """One sampled request. Times are seconds of the owner's clock, which says ``now``."""

    __slots__ = ("_base", "_base_ns", "_context", "_exporter")

    def __init__(self, context: Context, exporter: Exporter, now: float) -> None:
        self._context = context
        self._exporter = exporter
        self._base = now
        self._base_ns = time.time_ns()

    def _root(
        self, name: str, start: float, end: float, attributes: dict[str, Value], events: list[Event], error: str
    ) -> Span:
        """The request's own span; ``error`` is empty where it did not fail."""
        at = self._context
        begin, over = self._ns(start), self._ns(end)
        return Span(
            name, at.trace_id, at.span_id, at.parent_id, begin, over, SERVER, attributes, events, error, at.state
        )

    def _child(self, name: str, start: float, end: float) -> Span:
        """A span below it."""
        at = self._context
        return Span(name, at.trace_id, new_id(), at.span_id, self._ns(start), self._ns(end), state=at.state)

    def _ns(self, at: float) -> int:
        """Nanoseconds since the epoch."""
        return self._base_ns + int((at - self._base) * 1e9)
