"""Traces in Mooncake's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.sim.mooncake import BadTrace, parse, read

GOOD = {"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]}


def lines(*rows: object) -> list[str]:
    return [row if isinstance(row, str) else json.dumps(row) for row in rows]


def test_requests_are_read_with_times_in_seconds() -> None:
    rows = list(parse(lines(GOOD, "", {**GOOD, "timestamp": 1500, "hash_ids": []}), "t"))
    assert rows == [(0.0, 1200, 52, (0, 1, 2)), (1.5, 1200, 52, ())]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "must be an object"),
        ({**GOOD, "timestamp": -1}, "timestamp"),
        ({**GOOD, "timestamp": "0"}, "timestamp"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp"),
        ({**GOOD, "input_length": 0}, "input_length"),
        ({**GOOD, "input_length": 1.5}, "input_length"),
        ({**GOOD, "input_length": True}, "input_length"),
        ({"timestamp": 0, "output_length": 1}, "input_length"),
        ({**GOOD, "output_length": -1}, "output_length"),
        ({**GOOD, "hash_ids": "0"}, "hash_ids"),
        ({**GOOD, "hash_ids": [0, -1]}, "hash_ids"),
        ({**GOOD, "hash_ids": [0, 1, 2, 3]}, "4 hash_ids are more than the blocks"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(row: object, said: str) -> None:
    with pytest.raises(BadTrace, match=f"^t, line 3: .*{said}"):
        list(parse(lines(GOOD, "", row), "t"))


def test_time_that_goes_back_is_refused() -> None:
    with pytest.raises(BadTrace, match="line 2: timestamp 0 is earlier"):
        list(parse(lines({**GOOD, "timestamp": 5}, GOOD), "t"))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n")
    with pytest.raises(BadTrace, match="no request"):
        read(path, 10, 4, 0.5, 32_768)


def test_times_are_stretched_to_the_load_and_lengths_cut_to_the_context(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{**GOOD, "timestamp": 1000 * i, "input_length": 90_000, "hash_ids": list(range(176))} for i in range(5)]
    path.write_text("\n".join(lines(*rows)))
    trace = read(path, 4, 2, 0.5, 16_384)
    jobs = list(trace.jobs)
    assert trace.count == len(jobs) == 4
    assert jobs[-1].arrived == pytest.approx(trace.seconds)
    assert all(job.prompt + job.asked <= 16_384 and len(job.blocks) == job.prompt // 512 for job in jobs)
    as_it_was = list(read(path, 4, 2, 0.0, 16_384).jobs)
    assert [job.arrived for job in as_it_was] == [0.0, 1.0, 2.0, 3.0]
