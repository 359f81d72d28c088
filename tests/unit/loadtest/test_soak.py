"""The soak's record and verdicts, from courses that are known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from loadtest import soak
from loadtest.soak import Record, draw, told


class _Soak:
    sent = 1234

    def __init__(self, errors: dict[str, int] | None = None) -> None:
        self.errors = Counter(errors or {})


def record(path: Path | None = None, leak: float = 0.0) -> Record:
    found = Record(path)
    found.begin()
    for i in range(40):
        for process in ("router", "node-1"):
            found.add(i * 60.0, process, "rss", 60.0 + leak * i * (process == "router"))
            found.add(i * 60.0, process, "files", 30.0 + i % 2)
            found.add(i * 60.0, process, "tasks", 20.0)
            found.add(i * 60.0, process, "streams", 0.0)
        found.add(i * 60.0, "store", "store", 1.5)
    return found


def test_a_flat_run_ends_with_zero() -> None:
    text, code = told(record(), _Soak(), 2400.0)  # type: ignore[arg-type]
    assert code == 0 and "40.0 minutes, 1,234 requests, 0 failed" in text
    assert text.count("| flat |") == 9


def test_a_leak_is_named() -> None:
    text, code = told(record(leak=0.5), _Soak(), 2400.0)  # type: ignore[arg-type]
    assert code == 1
    [line] = [line for line in text.splitlines() if "grows" in line]
    assert line.startswith("| router | resident memory, MiB | 6")


def test_requests_that_failed_are_told() -> None:
    text, code = told(record(), _Soak({"node_lost": 2}), 2400.0)  # type: ignore[arg-type]
    assert code == 1 and "failed, node_lost: 2" in text


def test_nothing_seen_is_too_short() -> None:
    assert told(Record(None), _Soak(), 1.0)[1] == 6  # type: ignore[arg-type]


def test_the_record_is_a_table_and_a_picture(tmp_path: Path) -> None:
    found = record(tmp_path / "out" / "soak.csv")
    lines = (tmp_path / "out" / "soak.csv").read_text().splitlines()
    assert lines[0] == "seconds,process,figure,value" and lines[1] == "0.0,router,rss,60" and len(lines) == 361
    draw(found, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("argv", [["--seconds", "0"], ["--nodes", "0"], ["--rate", "-1"], ["--hours", "1e9"]])
def test_bad_options_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        soak.main(argv)
    assert caught.value.code == 2
