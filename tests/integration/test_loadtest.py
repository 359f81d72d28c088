"""The load tools run as the docs say, and their figures are those of real calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import Cluster, Spec, cluster
from tests.support.valkey import Valkey

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: str, timeout: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
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


@pytest.fixture(scope="module")
def running():
    with cluster(Spec(nodes=1)) as c:
        yield c


def locust(host: str, *args: str) -> subprocess.CompletedProcess[str]:
    flags = ["--headless", "-u", "2", "-r", "2", "-t", "3s", "--host", host, "--json", "--skip-log"]
    return run("-m", "locust", "-f", "loadtest/locustfile.py", *flags, *args, LAYA_MAX_TOKENS="4")


def test_locust_users_of_both_kinds_run_headless(running: Cluster) -> None:
    done = locust(f"http://{running.address}")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    for name in ("Generate", "Generate ttft", "Generate itl", "chat", "chat ttft", "chat itl"):
        assert rows[name]["num_requests"] > 0, name
        assert rows[name]["num_failures"] == 0


def test_locust_counts_refusals_by_reason(running: Cluster) -> None:
    done = run(
        "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "-u", "1", "-t", "2s",
        "--host", f"http://{running.address}", "--only-summary", "GrpcUser", LAYA_MODEL="nope",
    )  # fmt: skip
    assert done.returncode == 1
    assert "NOT_FOUND" in done.stdout + done.stderr


def test_locust_refuses_a_host_that_is_not_loopback() -> None:
    done = locust("http://192.0.2.1:80")
    assert done.returncode != 0
    assert "not loopback" in done.stdout + done.stderr
