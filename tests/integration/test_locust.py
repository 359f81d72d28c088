"""locust against a real router and simulated nodes: both kinds of users, its options, and what it refuses."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from router_node.middleware.keys import KeyStore
from tests.support.certs import Authority
from tests.support.ports import free_port, within
from tests.support.processes import ROOT, Cluster, Spec, cluster


@pytest.fixture(scope="module")
def running():
    with cluster(Spec(nodes=1)) as c:
        yield c


def argv(*args: str) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary", *args]


def locust(host: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv("--host", host, *args), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def table(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    ours = "type" in rows[0]
    return {(row["type"], row["name"]) if ours else (row["Type"], row["Name"]): row for row in rows}


def test_users_of_both_kinds_leave_their_rows(running: Cluster, tmp_path: Path) -> None:
    mix = ("--scenarios", "chat=2,cancel", "--max-tokens", "6", "--think-s", "0.02", "--priorities", "0=2,5")
    done = locust(f"http://{running.address}", "-u4", "-r4", "-t3s", "--csv", str(tmp_path / "run"), *mix)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(tmp_path / "run_stats.csv")
    for kind in ("grpc", "http"):
        for part in ("", " ttft", " itl", " tokens/s", " good"):
            assert int(rows[kind, "chat" + part]["Request Count"]) > 0, (kind, part)
        assert int(rows[kind, "cancel"]["Failure Count"]) == 0
    ours = table(tmp_path / "run_laya.csv")
    assert float(ours["grpc", "chat"]["good/s"]) > 0 and float(ours["http", "chat"]["tokens/s"]) > 0
    # In "Aggregated" a call counts once, whatever rows of its own its time has.
    assert 0 < int(rows["", "Aggregated"]["Request Count"]) <= sum(int(ours[key]["calls"]) for key in ours)


def test_tenants_are_let_in_by_their_keys_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("router")
    store = KeyStore(tmp_path / "keys.json")
    (tmp_path / "load").write_text("\n".join(store.add(tenant)[1] for tenant in ("a", "b")))
    env = {"TLS__CERT_FILE": pair.cert, "TLS__KEY_FILE": pair.key, "KEYS_FILE": str(store.path)}
    flags = ("-u4", "-r4", "-t2s", "--scenarios", "extract", "--think-s", "0.02", "--csv", str(tmp_path / "run"))
    with cluster(Spec(router={f"LAYA_SERVER__{name}": value for name, value in env.items()})) as c:
        trust = ("--ca-file", authority.file, "--api-keys", str(tmp_path / "load"))
        done = locust(f"https://{c.address}", *flags, *trust)
        assert done.returncode == 0, done.stderr
        assert {kind for kind, name in table(tmp_path / "run_laya.csv")} == {"grpc", "http"}
        trace = tmp_path / "trace.jsonl"
        trace.write_text('{"timestamp": 0, "input_length": 20, "output_length": 2}\n' * 4)
        done = locust(
            f"https://{c.address}", "-u2", "-r2", "-t30s", "--arrivals", "trace", "--trace", str(trace), *trust
        )
        assert done.returncode == 0 and "the trace is over" in done.stderr, done.stderr
        done = locust(f"https://{c.address}", *flags, "--ca-file", authority.file)
        assert done.returncode == 3 and "answers 401" in done.stderr


def test_refusals_are_counted_by_reason_with_percentiles(tmp_path: Path) -> None:
    flags = ("-u2", "-r2", "-t4s", "--scenarios", "summary", "--csv", str(tmp_path / "run"), "--call-timeout-s", "0.1")
    slow = {"LAYA_INFERENCE__SIM__PREFILL_TOKENS_PER_SECOND": "2000"}
    with cluster(Spec(nodes=1, node=slow)) as c:
        done = locust(f"http://{c.address}", *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    with (tmp_path / "run_laya_rejects.csv").open() as file:
        rejects = list(csv.DictReader(file))
    assert {row["type"] for row in rejects} == {"grpc", "http"}
    assert all(row["reason"].startswith("DEADLINE") and float(row["p50"]) > 0 for row in rejects), rejects
    assert "rejected: grpc summary DEADLINE" in done.stderr


def test_open_loop_arrivals_are_dropped_at_the_cap_and_that_is_said(running: Cluster) -> None:
    flags = ("-u2", "-r2", "-t2s", "--arrivals", "constant", "--rate", "30", "--max-in-flight", "2")
    done = locust(f"http://{running.address}", *flags, "--scenarios", "slow", "--json", "GrpcUser")
    assert done.returncode == 1
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert 40 <= rows["late"]["num_requests"] <= 130  # two users, thirty a second each, for two seconds
    made = rows["late"]["num_requests"] - rows["arrival"]["num_failures"]
    assert 2 <= made < 20  # the others were due all the same
    assert "dropped at the cap" in done.stderr


def test_a_shape_runs_for_its_time_and_ends(running: Cluster) -> None:
    done = locust(f"http://{running.address}", "-u2", "-t2s", "--shape", "steady", "--max-tokens", "2", "HttpUser")
    assert done.returncode == 0, done.stderr
    assert "Shape test completed" in done.stderr and "http  chat" in done.stderr


def test_master_and_workers_share_a_trace_between_them(running: Cluster, tmp_path: Path) -> None:
    trace, port = tmp_path / "trace.jsonl", str(free_port())
    rows = [{"timestamp": 20 * i, "input_length": 600, "output_length": 2, "hash_ids": [0]} for i in range(20)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    worker = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--worker", "--master-port", port]
    workers = [
        subprocess.Popen(worker, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)
    ]
    try:
        done = locust(
            f"http://{running.address}", "-u2", "-r2", "-t4s", "--stop-timeout", "2", "--arrivals", "trace", "--trace",
            str(trace), "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port,
            "--expect-workers", "2", "--csv", str(tmp_path / "run"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = table(tmp_path / "run_laya.csv")
        assert sum(int(row["calls"]) for row in found.values()) == 20  # none twice, none left out
        assert [worker.wait(30) for worker in workers] == [0, 0]
    finally:
        for one in workers:
            one.kill()
            one.wait(5)


@pytest.mark.parametrize(
    ("host", "flags", "code", "said"),
    [
        ("http://192.0.2.1:80", (), 2, "192.0.2.1: not loopback; pass --i-own-this-host 192.0.2.1"),
        ("http://127.0.0.1:1", (), 3, "127.0.0.1:1: cannot be reached"),
        ("", ("--scenarios", "dance"), 2, "there is no 'dance'"),
        ("", ("--arrivals", "trace", "--trace", "/nowhere"), 2, "No such file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    running: Cluster, host: str, flags: tuple[str, ...], code: int, said: str
) -> None:
    done = locust(host or f"http://{running.address}", "-u1", "-t2s", *flags)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_the_web_page_refuses_a_foreign_host_and_shows_our_figures(running: Cluster) -> None:
    port = free_port()
    flags = ["--web-host", "127.0.0.1", "--web-port", str(port), "--max-tokens", "2", "--think-s", "0.02"]
    plain = [a for a in argv(*flags) if a not in ("--headless", "--only-summary")]
    proc = subprocess.Popen(plain, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def page(path: str, **form: str) -> bytes:
        body = urllib.parse.urlencode(form).encode() if form else None
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=5) as answer:
            return bytes(answer.read())

    def tables() -> dict[str, list[dict[str, Any]]]:
        return {part["key"]: part["data"] for part in json.loads(page("/stats/requests"))["extended_stats"]}

    users = {"user_count": "2", "spawn_rate": "2"}
    try:
        within(30, lambda: page("/swarm", host="http://192.0.2.1:80", **users), "no page")
        within(10, lambda: json.loads(page("/stats/requests"))["state"] == "stopped", "it goes on")
        assert b"192.0.2.1: not loopback" in page("/exceptions")
        page("/swarm", host=f"http://{running.address}", **users)
        within(30, lambda: any(row["name"] == "chat" for row in tables()["laya"]), "no chat in our table")
        assert b"ttft p99" in page("/laya/csv")
    finally:
        proc.terminate()
        proc.wait(15)
