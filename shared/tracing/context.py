"""W3C trace context: which trace a request belongs to, and whether it is sampled."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL).fullmatch
_LOW: Final = (1 << 64) - 1
MAX_STATE: Final = 512  # bytes of tracestate that are kept


@dataclass(frozen=True, slots=True)
class Context:
    """One span's place: its trace, its own id, its parent's (0: none). ``state`` is the trace's tracestate."""

    trace_id: int
    span_id: int
    parent_id: int
    state: str = ""

    def header(self, span_id: int) -> bytes:
        """The ``traceparent`` of whoever is called from the span with this id of the same trace."""
        return b"00-%032x-%016x-01" % (self.trace_id, span_id)


def parse(value: bytes | None) -> tuple[int, int, bool] | None:
    """Trace id, parent's span id and whether it was sampled, of a ``traceparent``; None where it is not valid."""
    found = _FORM(value) if value is not None else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (more and version == b"00"):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    return (trace_id, span_id, bool(int(flags, 16) & 1)) if trace_id and span_id else None


def new_id() -> int:
    """A span id."""
    return random.getrandbits(64) or 1


class Sampler:
    """Decides by the trace's id, as OpenTelemetry's own samplers do, so that all who see a trace decide alike.

    ``ratio`` is the share of traces without a parent that are sampled; ``parent_based``: a parent's decision holds.
    """

    __slots__ = ("_bound", "_parent_based")

    def __init__(self, ratio: float, parent_based: bool) -> None:
        self._bound = round(ratio * (1 << 64))
        self._parent_based = parent_based

    def begin(self, parent: bytes | None, state: bytes | None = None, rooted: bool = True) -> Context | None:
        """The context of a new span, or None where it is not sampled. ``rooted``: it may be a trace's first."""
        found = parse(parent)
        if found is None:
            if not rooted or not self._bound:
                return None
            trace_id = random.getrandbits(128) or 1
            return Context(trace_id, new_id(), 0) if trace_id & _LOW < self._bound else None
        trace_id, parent_id, sampled = found
        if not (sampled if self._parent_based else trace_id & _LOW < self._bound):
            return None
        kept = state[:MAX_STATE].decode("ascii", "replace") if state and len(state) <= MAX_STATE else ""
        return Context(trace_id, new_id(), parent_id, kept)
