"""Where one request's time went, by stage; the mean of many; and the same from the servers' own histograms.

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
from typing import Final, Protocol

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


class Timed(Protocol):
    """What a node and a router say of a request, in seconds: ``shared.client.Timings``."""

    queue: float
    ttft: float
    total: float
    serialise: float
    route: float
    waited: float


@dataclass(slots=True)
class _Means:
    queue: float
    ttft: float
    total: float
    serialise: float
    route: float
    waited: float


def breakdown(timings: Timed, seconds: float) -> Breakdown:
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


Sums = Mapping[str, tuple[float, float]]  # histograms by name: the sum of seconds, and the count


def averaged(sums: Sums, seconds: float) -> Breakdown | None:
    """The mean stages by the histograms of routers and nodes, for requests that took clients ``seconds`` on average.

    Names are those of the metrics pages, ``laya_router_stage_seconds, match`` where there are stages. The histograms
    hold samples of the same requests, so what does not add up is in ``rest``. None where no node has answered any.
    """

    def of(name: str) -> tuple[float, float]:
        return sums.get(name, (0.0, 0.0))

    def middle(name: str) -> float:
        total, count = of(name)
        return total / count if count else 0.0

    if not of("laya_node_ttft_seconds")[1]:
        return None
    router = "laya_router_stage_seconds, "
    waited, routed = of(f"{router}queue")[0], of(f"{router}match")[1]
    queue, ttft = middle("laya_node_queue_seconds"), middle("laya_node_ttft_seconds")
    timings = _Means(
        queue=queue,
        ttft=max(queue, ttft),
        total=max(queue, ttft, middle("laya_node_request_seconds")),
        serialise=middle("laya_node_serialise_seconds"),
        route=middle(f"{router}match") + middle(f"{router}relay_in"),
        waited=waited / routed if routed else 0.0,
    )
    return breakdown(timings, seconds)


def lines(found: Breakdown) -> list[str]:
    """A line for each stage: milliseconds and the share of the whole."""
    whole = found.total or 1.0
    out = [
        f"{stage:<10}{getattr(found, stage) * 1e3:>12.3f} ms {getattr(found, stage) / whole:>7.1%}" for stage in STAGES
    ]
    return [*out, f"{'total':<10}{found.total * 1e3:>12.3f} ms"]
