"""The load tools run as the docs say, and their figures are those of real calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.valkey import Valkey

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: str, timeout: float = 60.0, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_the_router_benchmark_prints_its_rows() -> None:
    done = run("loadtest/benchmark_router.py", "--requests", "400", "--threads", "4", "--rounds", "2", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["target"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"direct", "laya"}
    for row in rows.values():
        assert row["errors"] == 0
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    assert rows["laya"]["cpu_us_per_call"] > 0
    split = {row["stage"]: row for row in rows["laya"]["split"]}
    assert list(split) == ["match and dispatch", "relay in", "node", "relay out"]
    for row in split.values():
        assert row["timed"] >= 400 // 17 - 2  # and what the warm laps brought
        assert row["mean_us"] > 0 and 0 < row["p50_us"] <= row["p95_us"] <= row["p99_us"]
    assert sum(row["mean_us"] for row in split.values()) < 2000 * rows["laya"]["mean_ms"]


def test_the_regression_guard_passes_the_same_code_and_catches_a_loop() -> None:
    asked = ["--self-test", "--by", "cpu", "--plain", "--only", "grpc", "--rounds", "3", "--json"]
    done = run("-m", "loadtest.perf", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    same, slower = (json.loads(line) for line in done.stdout.splitlines())
    assert not same["cases"][0]["worse"] and slower["cases"][0]["worse"]


SLOWER = """
_submit = Dispatcher.submit


def _slowly(self, *given):
    for _ in range(3000):
        pass
    return _submit(self, *given)


Dispatcher.submit = _slowly
"""


def test_the_regression_guard_fails_on_a_commit_that_made_the_hot_path_dearer(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for name in ("router_node", "shared", "loadtest"):
        shutil.copytree(ROOT / name, repository / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))

    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=repository, check=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "as it was")
    with (repository / "router_node" / "dispatch" / "dispatcher.py").open("a") as file:
        file.write(SLOWER)
    git("commit", "-q", "-a", "-m", "slower")
    (repository / "README.md").write_text("a commit that changes no code")
    git("add", "-A")
    git("commit", "-q", "-m", "words")
    argv = ["-m", "loadtest.perf", "--plain", "--by", "cpu", "--only", "dispatch", "--rounds", "1"]
    done = run(*argv, cwd=repository)
    assert done.returncode == 1, done.stdout + done.stderr
    heading, _, case = done.stdout.splitlines()
    assert "plain Python" in heading and "noise band 15%" in heading
    assert case.startswith("dispatch") and "WORSE" in case


def tables(*argv: str, timeout: float = 60.0) -> dict[str, list[dict[str, Any]]]:
    """The rows of a benchmark by table, after a check that it ran without an error."""
    done = run(*argv, "--rounds", "1", "--json", timeout=timeout)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["command"].startswith("python loadtest/")
    for rows in said["tables"].values():
        assert rows
        for row in rows:
            assert not row.get("errors"), row
    return dict(said["tables"])


def test_the_hop_benchmark_measures_calls_and_streams() -> None:
    args = ["--only", "unary,bulk,paced", "--seconds", "0.15", "--streams", "16", "--peers", ""]
    unary, bulk, paced = tables("loadtest/bench_hop.py", *args).values()
    shown = {(row["scenario"], row["target"]): row for row in unary}
    for scenario in ("1 in flight", "8 in flight", "64 in flight"):
        for target in ("direct", "laya"):
            assert 0 < shown[scenario, target]["p50_ms"] <= shown[scenario, target]["p99_ms"]
        assert shown[scenario, "laya"]["cpu_us_per_call"] > 0
    assert {row["scenario"] for row in bulk} == {"64 messages each", "512 messages each"}
    assert all(row["messages_per_second"] > 0 for row in bulk)
    for row in paced:
        assert row["messages_per_second"] > 100  # 16 streams of 40
        assert 0 < row["delay_p50_ms"] < 5000


def test_the_hop_benchmark_measures_size_and_growth() -> None:
    args = ["--only", "size", "--seconds", "0.1", "--calls", "1000", "--many", "40"]
    sizes, growth = tables("loadtest/bench_hop.py", *args).values()
    value = {row["scenario"]: row["value"] for row in sizes}
    assert 10 < value["resident with 10 nodes, MiB"] < 300
    assert len([name for name in value if name.startswith("idle ")]) == 3
    assert [row["target"] for row in growth] == ["10 of each", "40 nodes", "40 open streams", "40 connections"]
    assert all(row["cpu_us_per_call"] > 0 for row in growth)


def test_the_http_benchmark_measures_peers_by_wrk() -> None:
    from loadtest import peers_setup

    if not (peers_setup.find("wrk") and peers_setup.find("nginx")):
        pytest.skip("wrk or nginx is not installed")
    calls, events, work = tables("loadtest/bench_http.py", "--only", "8,sse", "--peers", "nginx").values()
    assert {row["target"] for row in work} == {"laya"} and all(0 < row["p50_us"] < 100_000 for row in work)
    for rows in (calls, events):
        assert [row["target"] for row in rows] == ["direct", "laya", "nginx"]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in calls)
    assert all(row["chunks_per_second"] > 100 for row in events)


def test_the_http_benchmark_needs_no_peer_and_no_wrk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # nothing is found without it
    args = ["--only", "1,paced", "--seconds", "0.2", "--streams", "8", "--peers", ""]
    calls, _, paced = tables("loadtest/bench_http.py", *args).values()
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in calls)
    assert all(row["chunks_per_second"] > 100 for row in paced)


def test_the_node_benchmark_compares_both_servers() -> None:
    [rows] = tables("loadtest/bench_node.py", "--seconds", "0.2", "--streams", "8").values()
    assert [row["target"] for row in rows] == ["laya", "grpc.aio"] * 2
    assert all(row["cpu_us_per_message"] > 0 for row in rows)


def test_the_migration_benchmark_compares_three_routers_and_their_memory() -> None:
    args = ["--seconds", "0.2", "--rounds", "1", "--streams", "8", "--held", "32"]
    streams, memory = tables("loadtest/bench_migration.py", *args).values()
    targets = ["off", "on, not granted", "on"]
    assert [row["target"] for row in streams] == targets * 2
    assert all(row["cpu_us_per_message"] > 0 and not row["errors"] for row in streams)
    assert [row["target"] for row in memory] == targets
    assert [row["set_aside_kib_per_stream"] > 0 for row in memory] == [False, False, True]


def test_peers_that_are_missing_are_named_with_what_to_do(tmp_path: Path) -> None:
    done = run("loadtest/peers_setup.py", XDG_CACHE_HOME=str(tmp_path), PATH="")
    assert done.returncode == 0, done.stderr
    said = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert said["smg"] == "smg is not installed: left out (run with --install-peers)"
    assert list(tmp_path.iterdir()) == []


def test_a_canned_node_registers_and_reports_like_a_real_one(valkey: Valkey) -> None:
    from loadtest.rig import Rig

    env = {"LAYA_SERVER__REDIS": valkey.url}
    with Rig() as rig:
        rig.python("loadtest.fake_node", "--redis", valkey.url, "--node-id", "fake-1")
        address, _, admin = rig.router([], env=env)
        done = run("-m", "shared.cli.main", "nodes", "--admin", admin, "--json")
        [node] = json.loads(done.stdout)
        assert (node["node_id"], node["state"], node["source"]) == ("fake-1", "ready", "redis")
        assert node["model"]["engine"] == "canned"
        answer = run("-m", "shared.cli.main", "generate", "x", "--raw", "--json", "--address", address)
        assert json.loads(answer.stdout)["text"].startswith("canned")
