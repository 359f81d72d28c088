"""Counts of streams that go on elsewhere: bounded, added up over workers, shown on the page."""

from __future__ import annotations

from router_node.admin.counters import RouterMetrics
from router_node.admin.metrics import Snapshot, total
from router_node.admin.moves import MAX_REASONS, MoveCounts
from router_node.admin.page import MetricsPage


def test_reasons_are_bounded() -> None:
    counts = MoveCounts()
    for i in range(MAX_REASONS + 5):
        counts.keeps(f"reason {i}")
    kept = counts.sample().kept
    assert len(kept) == MAX_REASONS + 1
    assert kept["other"] == 5


def test_workers_are_added_up_and_shown() -> None:
    workers = [RouterMetrics(), RouterMetrics()]
    for metrics in workers:
        metrics.moves.moved("moved")
        metrics.moves.stalled(0.2)
        metrics.moves.keeps("n is over 1")
        metrics.moves.poisonous += 1
        metrics.moves.journals = 3
        metrics.moves.journal_bytes = 100
    snapshot: Snapshot = total([metrics.snapshot() for metrics in workers])
    text = MetricsPage(lambda: snapshot).render()[1].decode()
    for line in (
        'laya_router_migrations_total{outcome="moved"} 2.0',
        'laya_router_not_migratable_total{reason="n is over 1"} 2.0',
        'laya_router_migration_stall_seconds_bucket{le="0.1"} 0.0',
        'laya_router_migration_stall_seconds_bucket{le="0.25"} 2.0',
        "laya_router_migration_stall_seconds_sum 0.4",
        "laya_router_poisonous_total 2.0",
        "laya_router_journals 6.0",
        "laya_router_journal_bytes 200.0",
    ):
        assert line in text
