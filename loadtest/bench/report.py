"""What a benchmark leaves behind for machines: ``report.json``, and the figures of its rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.bench.plan import Plan
from loadtest.bench.stats import quantile

FILE = "report.json"
SCHEMA = 1
_STEPS = 100


class BadReport(ValueError):
    """A file that is no report: one sentence."""


class Row(msgspec.Struct, array_like=True):
    """One request. Times are seconds; 0 for what never came. ``at`` is when it was due in its round."""

    at: float
    kind: str
    status: int
    first: float
    total: float
    itl: float
    tokens: int
    prompt: int
    cached: int
    node: str
    error: str
    """Empty for a full answer; for a refusal its reason; ``not sent`` and ``unfinished`` are the bench's own."""
    cancelled: bool = False

    @property
    def served(self) -> bool:
        """Answered in full."""
        return self.status == 200 and not self.error and not self.cancelled

    @property
    def refused(self) -> bool:
        """Told to come back later, before any answer."""
        return self.status in (429, 503)

    @property
    def failed(self) -> bool:
        """Neither answered nor refused, nor given up by its own client."""
        return not (self.served or self.refused or self.cancelled or self.error == "not sent")


class NodeSample(msgspec.Struct):
    """A node as its router saw it."""

    headroom: float
    capacity: float
    running: float
    waiting: float


class ProcessSample(msgspec.Struct):
    """A process: CPU in percent of a core since the last look, resident memory in bytes."""

    cpu: float
    rss: float


class Sample(msgspec.Struct):
    """One look at the cluster."""

    at: float
    """Seconds since the first round began."""
    nodes: dict[str, NodeSample] = {}
    processes: dict[str, ProcessSample] = {}
    queue: float = 0.0


class Round(msgspec.Struct):
    """One round: its requests, and what they make."""

    number: int
    seed: int
    start: float
    """Seconds since the first round began."""
    seconds: float
    rows: list[Row]
    itl: list[float] = []
    """Hundredths of the times between pieces of all answers, in seconds."""
    lag: float = 0.0
    """p99 of how late the bench itself sent, in seconds."""
    partial: bool = False
    stages: dict[str, float] = {}
    """Mean seconds by the servers' own histograms."""
    split: dict[str, float] = {}
    """Mean seconds of an answered request in each stage (``shared.timing``), by the same histograms."""
    figures: dict[str, float] = {}


class Report(msgspec.Struct, omit_defaults=True):
    """All of it."""

    plan: Plan
    seed: int
    command: str
    started: str
    """UTC, ISO 8601."""
    target: str
    model: str
    environment: dict[str, str]
    rounds: list[Round] = []
    samples: list[Sample] = []
    warnings: list[str] = []
    partial: str = ""
    """Why not all of the plan was run; empty when it was."""
    pair: str = ""
    """The same for two reports whose rounds took turns."""
    schema: int = SCHEMA

    def whole_rounds(self) -> list[Round]:
        """Rounds that ran to their end."""
        return [r for r in self.rounds if not r.partial]


# Name -> (heading, unit, whether less is better; None where neither is).
FIGURES: dict[str, tuple[str, str, bool | None]] = {
    "ttft_mean": ("TTFT mean", "ms", True),
    "ttft_p50": ("TTFT p50", "ms", True),
    "ttft_p90": ("TTFT p90", "ms", True),
    "ttft_p99": ("TTFT p99", "ms", True),
    "itl_p50": ("time between pieces p50", "ms", True),
    "itl_p99": ("time between pieces p99", "ms", True),
    "latency_p50": ("whole answer p50", "ms", True),
    "latency_p99": ("whole answer p99", "ms", True),
    "goodput": ("good answers", "1/s", False),
    "good_share": ("good share of what was offered", "%", False),
    "tokens": ("tokens of full answers", "1/s", False),
    "prefix_hits": ("prompt tokens found in a cache", "%", False),
    "offered": ("offered", "", None),
    "served": ("answered in full", "", None),
    "refused": ("refused", "", None),
    "failed": ("failed", "", True),
    "cancelled": ("given up by their client", "", None),
    "not_sent": ("not sent, too many in flight", "", None),
}


def figures(rows: Sequence[Row], itl: Sequence[float], seconds: float, plan: Plan) -> dict[str, float]:
    """What a round comes to; nan for what cannot be said. ``seconds`` is its planned length, or as far as it came."""
    served = [r for r in rows if r.served]
    good = sum(r.first <= plan.slo_ttft and r.itl <= plan.slo_itl for r in served)
    firsts = [r.first * 1e3 for r in served]
    totals = [r.total * 1e3 for r in served]
    prompts = sum(r.prompt for r in served)
    long = max([seconds, *(r.at + r.total for r in served)])
    return {
        "ttft_mean": sum(firsts) / len(firsts) if firsts else math.nan,
        "ttft_p50": quantile(firsts, 0.5),
        "ttft_p90": quantile(firsts, 0.9),
        "ttft_p99": quantile(firsts, 0.99),
        "itl_p50": quantile(itl, 0.5) * 1e3,
        "itl_p99": quantile(itl, 0.99) * 1e3,
        "latency_p50": quantile(totals, 0.5),
        "latency_p99": quantile(totals, 0.99),
        "goodput": good / seconds if seconds > 0 else math.nan,
        "good_share": 100.0 * good / len(rows) if rows else math.nan,
        "tokens": sum(r.tokens for r in served) / long if long > 0 else math.nan,
        "prefix_hits": 100.0 * sum(r.cached for r in served) / prompts if prompts else math.nan,
        "offered": float(len(rows)),
        "served": float(len(served)),
        "refused": float(sum(r.refused for r in rows)),
        "failed": float(sum(r.failed for r in rows)),
        "cancelled": float(sum(r.cancelled for r in rows)),
        "not_sent": float(sum(r.error == "not sent" for r in rows)),
    }


def hundredths(values: Sequence[float]) -> list[float]:
    """The quantiles 0, 0.01, … 1; empty when there are no values."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, i * len(ordered) // _STEPS)] for i in range(_STEPS + 1)] if ordered else []


def reasons(rounds: Sequence[Round]) -> Counter[str]:
    """How often a request was not answered, by why."""
    return Counter(row.error for one in rounds for row in one.rows if row.error)


def per_node(rounds: Sequence[Round]) -> dict[str, int]:
    """Requests each node answered, by name, as the answers' own headers say."""
    return dict(sorted(Counter(row.node for one in rounds for row in one.rows if row.node).items()))


def save(report: Report, folder: Path) -> Path:
    """Write ``report.json``, whole or not at all. Raises OSError."""
    for one in report.rounds:  # JSON has no nan: what is not known is left out
        one.figures = {name: value for name, value in one.figures.items() if math.isfinite(value)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    draft = path.with_suffix(".part")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    draft.replace(path)
    return path


def load(path: Path) -> Report:
    """A report from its file or its folder. Raises BadReport or OSError."""
    file = path / FILE if path.is_dir() else path
    try:
        report = msgspec.json.decode(file.read_bytes(), type=Report)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadReport(f"{file}: no report of laya bench ({error})") from None
    if report.schema != SCHEMA:
        raise BadReport(f"{file}: written in form {report.schema}; this version reads form {SCHEMA}")
    return report
