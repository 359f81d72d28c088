"""Where one request's time went, by stage, and the mean of many.

==============  =====================================================================================
stage           seconds
==============  =====================================================================================
``route``       the router's own work before its first byte to a node
``queue``       waiting for a node with room, in the router, and for admission, in the node
``prefill``     from admission to the first token; an engine's own queue is in it
``decode``      from the first token to the last, ``serialise`` left out
``serialise``   in the node: making the messages and handing them on, back-pressure included
``rest``        everything else: the network, the relay of the answer, the client itself
==============  =====================================================================================

``route`` and the router's part of ``queue`` come from the router's headers, the others from the ``Timings`` that a node
sends with its last message. A node measures ``serialise`` where the request carries ``laya-timing: 1``; else it is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shared.client import Timings

STAGES: Final = ("route", "queue", "prefill", "decode", "serialise", "rest")
ASK: Final[Mapping[str, str]] = {"laya-timing": "1"}  # metadata of a request that wants all of it


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds in each stage; ``total`` is their sum, the whole request as its client saw it."""

    route: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    serialise: float = 0.0
    rest: float = 0.0
    total: float = 0.0


def breakdown(timings: Timings, seconds: float) -> Breakdown:
    """The stages of a request that took its client so many seconds. What clocks disagree about is never negative."""
    serialise = min(timings.serialise, max(0.0, timings.total - timings.ttft))
    known = timings.route + timings.waited + timings.total
    return Breakdown(
        route=timings.route,
        queue=timings.waited + timings.queue,
        prefill=max(0.0, timings.ttft - timings.queue),
        decode=max(0.0, timings.total - timings.ttft - serialise),
        serialise=serialise,
        rest=max(0.0, seconds - known),
        total=max(seconds, known),
    )


def mean(many: Iterable[Breakdown]) -> Breakdown | None:
    """The mean of each stage; None of none."""
    items = list(many)
    if not items:
        return None
    names = [field.name for field in fields(Breakdown)]
    return Breakdown(**{name: sum(getattr(one, name) for one in items) / len(items) for name in names})


def lines(found: Breakdown) -> list[str]:
    """A line for each stage: milliseconds and the share of the whole."""
    whole = found.total or 1.0
    out = [
        f"{stage:<10}{getattr(found, stage) * 1e3:>12.3f} ms {getattr(found, stage) / whole:>7.1%}" for stage in STAGES
    ]
    return [*out, f"{'total':<10}{found.total * 1e3:>12.3f} ms"]
