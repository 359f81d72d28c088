"""Pictures are PNG, whatever a report lacks."""

from __future__ import annotations

from loadtest.bench import plots
from tests.unit.loadtest.bench.made import made


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


def test_every_picture_is_drawn() -> None:
    found = plots.all_of(made())
    assert set(found) == {"latency.png", "over-time.png", "rejects.png", "nodes.png", "headroom.png", "processes.png"}
    assert size(found["latency.png"]) == (1200, 360) and size(found["nodes.png"]) == (600, 360)


def test_what_was_not_seen_is_not_drawn() -> None:
    report = made(rounds=0)
    report.samples = []
    found = plots.all_of(report)
    assert set(found) == {"latency.png", "over-time.png", "rejects.png", "nodes.png"}
    assert all(size(png) for png in found.values())


def test_two_reports_share_a_picture_and_rows_wrap() -> None:
    assert size(plots.beside(made(), made(seed=2))) == (1200, 360)
    assert size(plots.picture(5, lambda axes: None)) == (1200, 1080)
