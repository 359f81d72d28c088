"""Streams that go on elsewhere, on the metrics page."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from router_node.admin.moves import STALL_BOUNDS, MovesSample


def families(sample: MovesSample) -> Iterator[Metric]:
    """The series of one sample."""
    moved = CounterMetricFamily(
        "laya_router_migrations",
        "Streams with a journal that lost their node, by how that ended: moved, complete, or why it could not go on.",
        labels=("outcome",),
    )
    for outcome, count in sorted(sample.outcomes.items()):
        moved.add_metric((outcome,), count)
    yield moved
    kept = CounterMetricFamily(
        "laya_router_not_migratable", "Streams that can not go on elsewhere, by reason.", labels=("reason",)
    )
    for reason, count in sorted(sample.kept.items()):
        kept.add_metric((reason,), count)
    yield kept
    stall = HistogramMetricFamily(
        "laya_router_migration_stall_seconds",
        "From a moved stream's last message of one node to the first of the next.",
    )
    reached = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*STALL_BOUNDS, float("inf")), sample.stall_buckets, strict=False):
        reached += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), reached))
    if buckets:
        stall.add_metric((), buckets, sample.stall_seconds)
    yield stall
    yield CounterMetricFamily(
        "laya_router_poisonous",
        "Requests refused since two nodes in a row were lost with them.",
        value=sample.poisonous,
    )
    yield GaugeMetricFamily("laya_router_journals", "Streams that have a journal now.", value=sample.journals)
    yield GaugeMetricFamily("laya_router_journal_bytes", "Bytes set aside for journals.", value=sample.journal_bytes)
