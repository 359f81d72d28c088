"""Replays of traces against real routers: shared prefixes, conversations, and targets and traces that are no good."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import within
from tests.support.processes import ROOT, Cluster, Spec, cluster

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def running():
    with cluster(Spec(nodes=2)) as c:
        yield c


def command(host: str, trace: Path, *args: str) -> list[str]:
    return [sys.executable, "loadtest/replay.py", str(trace), "--host", host, *args]


def replay(host: str, trace: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(host, trace, *args), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def row(at: int, blocks: list[int], tokens: int = 1100, output: int = 3) -> dict[str, object]:
    return {"timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": blocks}


@pytest.mark.parametrize("api", ["grpc", "http"])
def test_blocks_that_come_again_are_found_in_a_cache(running: Cluster, tmp_path: Path, api: str) -> None:
    base = {"grpc": 100, "http": 200}[api]  # nothing that the other has left in a cache
    rows = [row(i * 500, [base, base + 1, base + 10 + i]) for i in range(4)]
    rows.append(row(2000, [base + 50, base + 51, base + 52]))
    out = tmp_path / "out.jsonl"
    done = replay(
        f"http://{running.address}",
        write(tmp_path / "t", rows),
        "--api",
        api,
        "--out",
        str(out),
        "--json",
        "--speed",
        "2",
    )
    assert done.returncode == 0, done.stderr
    lines: Rows = sorted(map(json.loads, out.read_text().splitlines()), key=lambda line: int(line["item"]))
    assert [line["prompt_tokens"] for line in lines] == [1100] * 5
    assert [line["tokens"] for line in lines] == [3] * 5
    assert [line["due"] for line in lines] == [0, 0.25, 0.5, 0.75, 1.0]
    if api == "grpc":
        # Two blocks of 512 tokens are shared, and neither the third nor the stranger's.
        assert [line["cached_tokens"] for line in lines] == [0, 1024, 1024, 1024, 0]
    found = json.loads(done.stdout)
    assert found["answered"] == 5 and found["reusable_share"] == pytest.approx(3 * 1024 / 5500)
    assert 0 < found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"] <= found["total_ms"]["p99"]


def test_conversations_find_their_own_turns_again(running: Cluster, tmp_path: Path) -> None:
    said = [
        {"from": who, "value": f"{who} number {i} says " + "a lot " * 30} for i in range(2) for who in ("human", "gpt")
    ]
    done = replay(
        f"http://{running.address}", write(tmp_path / "t", [{"conversations": said}] * 3), "--rate", "20", "--think",
        "0.01", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["begun"], found["calls"], found["answered"]) == (3, 6, 6)
    assert found["cached_tokens"] > 3 * 50


def test_a_target_that_goes_away_leaves_what_came_so_far(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    trace = write(tmp_path / "t", [row(i * 20, [i], 20) for i in range(1000)])
    with Cluster(Spec(nodes=1)) as c:
        proc = subprocess.Popen(
            command(f"http://{c.address}", trace, "--out", str(out), "--budget", "4", "--drain", "1"),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            within(20, lambda: out.read_text().count("\n") > 5, "no line of the replay")
            c.router.kill()
            text, notes = proc.communicate(timeout=30)
        finally:
            proc.kill()
            proc.wait(5)
    assert proc.returncode == 1
    assert "the trace takes 20 s at this speed and the budget is 4 s" in notes
    assert "rejected UNREACHABLE: " in text and "ended early: the budget of 4 s is over" in text
    lines: Rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["reason"] == "" and lines[-1]["reason"] == "UNREACHABLE"


def test_an_interrupted_replay_keeps_its_lines(running: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    trace = write(tmp_path / "t", [row(i * 50, [i], 20) for i in range(1000)])
    proc = subprocess.Popen(
        command(f"http://{running.address}", trace, "--out", str(out), "--json"),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        within(20, lambda: out.read_text().count("\n") > 2, "no line of the replay")
        proc.send_signal(signal.SIGINT)
        text, _ = proc.communicate(timeout=20)
    finally:
        proc.kill()
        proc.wait(5)
    found = json.loads(text)
    assert (proc.returncode, found["ended"]) == (130, "interrupted")
    assert found["calls"] == out.read_text().count("\n")


def test_more_than_the_cap_is_dropped_and_counted(running: Cluster, tmp_path: Path) -> None:
    trace = write(tmp_path / "t", [row(0, [i], 20, 40) for i in range(6)])
    done = replay(f"http://{running.address}", trace, "--max-in-flight", "2")
    assert done.returncode == 1
    assert "not sent, for the cap of what is in flight (--max-in-flight): 4" in done.stdout


@pytest.mark.parametrize(
    ("host", "rows", "flags", "code", "said"),
    [
        ("http://192.0.2.1:1", [row(0, [])], (), 2, "192.0.2.1: not loopback; pass --i-own-this-host 192.0.2.1"),
        ("http://127.0.0.1:1", [row(0, [])], (), 3, "cannot be reached"),
        ("", [row(0, []), {"timestamp": -1}], (), 2, "line 2: timestamp must be milliseconds"),
        ("", [row(0, [])], ("--speed", "0"), 2, "--speed: 0 is not above 0"),
        ("", [row(0, [])], ("--api-keys", "/nowhere"), 2, "replay: /nowhere: No such file or directory"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_a_sentence(
    running: Cluster, tmp_path: Path, host: str, rows: Rows, flags: tuple[str, ...], code: int, said: str
) -> None:
    done = replay(host or f"http://{running.address}", write(tmp_path / "t", rows), *flags)
    assert (done.returncode, said in done.stderr, done.stdout) == (code, True, ""), done.stderr
    assert "Traceback" not in done.stderr
