"""What calls add to the statistics, and the figures made of them."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.users import panel
from loadtest.users.call import Call, Outcome
from loadtest.users.record import Recorder, Slo, bucket
from loadtest.users.shapes import SHAPES, start_rate

CHAT = Call(name="chat")


class Row:
    """As locust's StatsEntry, as far as it is used."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.num_failures = 0
        self.total_content_length = 0

    @property
    def num_requests(self) -> int:
        return len(self.values)

    def log(self, value: float, size: int) -> None:
        self.values.append(bucket(value))
        self.total_content_length += size

    def get_response_time_percentile(self, share: float) -> float:
        ranked = sorted(self.values)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


class Stats:
    """As locust's RequestStats; ten seconds of it."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Row] = {}
        self.total = type("Total", (), {"start_time": 100.0, "last_request_timestamp": 110.0})

    def get(self, name: str, method: str) -> Any:
        return self.entries.setdefault((name, method), Row())

    def fire(self, request_type: str, name: str, response_time: float, response_length: int, exception: Any, **_: Any):
        row = self.get(name, request_type)
        row.log(response_time, response_length)
        row.num_failures += exception is not None


@pytest.fixture
def stats() -> Stats:
    return Stats()


@pytest.fixture
def recorder(stats: Stats) -> Recorder:
    return Recorder(stats, stats.fire, Slo(ttft=0.5, itl=0.05))


def test_a_call_is_split_into_what_its_time_is_made_of(stats: Stats, recorder: Recorder) -> None:
    recorder.call("grpc", CHAT, Outcome(first=0.2, last=1.2, total=1.25, tokens=101))
    assert {name: row.values for (name, _), row in stats.entries.items()} == {
        "chat": [1200.0],
        "chat ttft": [200.0],
        "chat itl": [10.0],
        "chat tokens/s": [81.0],
        "chat good": [1200.0],
    }


def test_a_late_call_has_waited(stats: Stats, recorder: Recorder) -> None:
    recorder.call("grpc", CHAT, Outcome(first=0.2, last=0.3, total=0.3, tokens=11), late=0.4)
    assert stats.get("chat ttft", "grpc").values == [600.0]
    assert ("chat good", "grpc") not in stats.entries  # 0.2 s alone would have been good


def test_only_calls_within_the_slo_are_good() -> None:
    slo = Slo(ttft=0.5, itl=0.05)
    quick = Outcome(first=0.1, last=1.1, total=1.1, tokens=101)
    assert slo.met(CHAT, quick)
    assert not slo.met(CHAT, Outcome(first=0.6, last=0.7, total=0.7, tokens=11))
    assert not slo.met(CHAT, Outcome(first=0.1, last=1.1, total=1.1, tokens=11))
    assert not slo.met(CHAT, Outcome(reason="NODE_LOST", first=0.1, last=0.2, total=0.2, tokens=11))
    slow = Outcome(first=0.1, last=1.1, total=1.1, tokens=11)
    assert slo.met(Call(name="slow", read_delay=0.1), slow)  # its pace was the client's


def test_refusals_are_rows_by_reason_and_in_the_table(stats: Stats, recorder: Recorder) -> None:
    for total in (0.01, 0.02, 0.03):
        recorder.call("http", CHAT, Outcome(reason="QUEUE_FULL", total=total))
    recorder.call("http", CHAT, Outcome(first=0.1, last=0.2, total=0.2, tokens=20))
    assert panel.rejects(stats) == [
        {"type": "http", "name": "chat", "reason": "QUEUE_FULL", "count": 3, "p50": 20.0, "p95": 30.0, "p99": 30.0}
    ]
    [row] = panel.rows(stats)
    assert (row["calls"], row["rejected"], row["good %"], row["good/s"], row["tokens/s"]) == (4, 3, 25.0, 0.1, 2.0)
    assert "rejected: http chat QUEUE_FULL: 3, after 20 ms at p50" in panel.text(stats)


def test_dropped_and_unfinished_are_said_and_are_no_calls(stats: Stats, recorder: Recorder) -> None:
    recorder.late(0.003)
    recorder.dropped(7)
    recorder.unfinished()
    assert panel.rows(stats) == []
    said = panel.text(stats)
    assert "arrivals: 1 due, made late by 3 ms at p99, 1 dropped at the cap" in said
    assert "cut off by the end: 1 calls" in said


def test_the_csv_has_a_column_for_every_figure(stats: Stats, recorder: Recorder) -> None:
    recorder.call("grpc", CHAT, Outcome(first=0.1, last=0.1, total=0.1, tokens=1))
    [row] = csv.DictReader(io.StringIO(panel.to_csv(stats)))
    assert tuple(row) == panel.COLUMNS and row["ttft p99"] == "100.0"


@given(st.floats(0, 1e7))
def test_rounding_keeps_two_digits(value: float) -> None:
    assert abs(bucket(value) - value) <= max(0.051, 0.051 * value)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_over_in_their_time_and_never_without_users(name: str) -> None:
    shape = SHAPES[name]
    users = [shape.users(i / 10, 60.0, 10) for i in range(600)]
    assert all(count is not None and 1 <= count <= 50 for count in users)
    assert shape.users(60.0, 60.0, 10) is None
    assert 0 < shape.seconds <= 4 * 3600


def test_shapes_are_what_their_names_say() -> None:
    def at(name: str, *shares: float) -> list[int | None]:
        return [SHAPES[name].users(share * 100, 100.0, 10) for share in shares]

    assert at("ramp", 0.0, 0.5, 0.99) == [1, 5, 10]
    assert at("steady", 0.0, 0.99) == [10, 10]
    assert at("spike", 0.1, 0.35, 0.5, 0.72, 0.9) == [10, 50, 10, 50, 10]
    assert at("stairs", 0.1, 0.3, 0.5, 0.7, 0.9) == [2, 4, 6, 8, 10]
    assert at("soak", 0.001, 0.5) == [1, 10]
    assert at("overload", 0.1, 0.5, 0.9) == [10, 30, 10]


def test_a_step_is_taken_at_once_but_not_faster_than_locust_can() -> None:
    assert [start_rate(now, 10) for now in (10, 14, 4, 2000)] == [1.0, 4.0, 6.0, 100.0]
