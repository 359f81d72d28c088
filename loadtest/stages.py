"""The split of a request's time by a router's own histograms, between two looks at its metrics page."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass, field
from typing import Final

from router_node.admin.stages import BOUNDS, STAGES, quantile

# What the stages are called in a table, in the order in which a request passes them.
NAMES: Final = {
    "match": "match and dispatch",
    "queue": "queue",
    "relay_in": "relay in",
    "first": "node, first byte",
    "node": "node",
    "relay_out": "relay out",
}
_SAMPLE: Final = re.compile(
    r'^laya_router_stage_seconds_(bucket|sum)\{(?:le="([^"]*)",)?stage="(\w+)"(?:,le="([^"]*)")?\} (\S+)$', re.MULTILINE
)


@dataclass
class Times:
    """One stage's histogram: times in each bucket of ``BOUNDS``, and their sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0


def parse(page: str) -> dict[str, Times]:
    """The histograms of a metrics page, by stage."""
    out = {stage: Times() for stage in STAGES}
    below = dict.fromkeys(STAGES, 0)
    place = dict.fromkeys(STAGES, 0)
    for kind, _, stage, _, value in _SAMPLE.findall(page):
        times = out.get(stage)
        if times is None:
            continue
        if kind == "sum":
            times.seconds = float(value)
        elif place[stage] < len(times.counts):
            reached = int(float(value))
            times.counts[place[stage]] = reached - below[stage]
            below[stage] = reached
            place[stage] += 1
    return out


def read(admin: str) -> dict[str, Times]:
    """The histograms of the router with this private address. Raises OSError."""
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as answer:
        return parse(answer.read().decode())


def between(before: dict[str, Times], after: dict[str, Times]) -> dict[str, Times]:
    """What came in between."""
    return {
        stage: Times(
            [late - early for early, late in zip(before[stage].counts, after[stage].counts, strict=True)],
            after[stage].seconds - before[stage].seconds,
        )
        for stage in STAGES
    }


def rows(times: dict[str, Times]) -> list[dict[str, object]]:
    """A row for each stage that was seen: how many requests were timed, and microseconds.

    Means are exact, quantiles as fine as the buckets.
    """
    out: list[dict[str, object]] = []
    for stage, name in NAMES.items():
        counts = times[stage].counts
        timed = sum(counts)
        if timed:
            row: dict[str, object] = {"stage": name, "timed": timed, "mean_us": times[stage].seconds / timed * 1e6}
            row |= {f"p{share}_us": quantile(share / 100, counts) * 1e6 for share in (50, 95, 99)}
            out.append(row)
    return out


def show(table: list[dict[str, object]]) -> None:
    """The table."""
    columns = ["timed", "mean_us", "p50_us", "p95_us", "p99_us"]
    print(f"{'stage':<20}" + "".join(f"{column:>12}" for column in columns))
    for row in table:
        cells = "".join(f"{row[c]:>12.0f}" if c == "timed" else f"{row[c]:>12.1f}" for c in columns)
        print(f"{row['stage']:<20}{cells}")
