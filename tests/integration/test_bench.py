"""``laya bench`` and the commands beside it, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import peers_setup
from tests.support.ports import free_port
from tests.support.processes import Cluster, Spec, cluster
from tests.support.up import ROOT


def laya(*argv: str, module: str = "shared.cli.main", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *argv],
        cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def running():
    with cluster(Spec(nodes=2)) as c:
        yield c


def test_smoke_starts_a_cluster_and_writes_its_report(tmp_path: Path) -> None:
    done = laya("bench", "smoke", "--rounds", "3", "--seconds", "0.5", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "TTFT p50, ms" in done.stdout and "index.html" in done.stdout
    made = {p.name for p in tmp_path.iterdir()}
    assert made == {
        "report.json", "index.html", "latency.png", "over-time.png", "headroom.png", "nodes.png", "rejects.png",
        "processes.png",
    }  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["plan"]["name"] == "smoke" and len(report["rounds"]) == 3 and "partial" not in report
    again = laya("bench", "smoke", "--rounds", "1", "--out", str(tmp_path))
    assert again.returncode == 2 and "--force" in again.stderr
    assert {"router", "node-1", "node-2", "bench"} <= set(report["samples"][-1]["processes"])
    assert set(report["samples"][-1]["nodes"]) == {"node-1", "node-2"}
    assert report["rounds"][0]["stages"]["laya_node_ttft_seconds"] > 0
    assert report["rounds"][0]["split"]["prefill"] > 0 and report["rounds"][0]["split"]["decode"] > 0
    assert "laya bench smoke" in report["command"]


def test_a_running_cluster_is_measured_and_its_nodes_are_seen(running: Cluster, tmp_path: Path) -> None:
    done = laya(
        "bench", "smoke", "--target", running.address, "--admin", running.admin, "--rounds", "1", "--seconds", "0.5",
        "--no-plots", "--json", "--out", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [told] = json.loads(done.stdout)
    assert told["median"]["failed"] == 0 and told["median"]["answered in full"] > 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["samples"][-1]["nodes"]) == 2
    assert "router" in report["samples"][-1]["processes"]
    assert not list(tmp_path.glob("*.png"))
    (tmp_path / "latency.png").touch()
    again = laya(
        "bench", "smoke", "--target", running.address, "--rounds", "1", "--seconds", "0.2", "--out", str(tmp_path),
        "--no-plots", "--force",
    )  # fmt: skip
    assert again.returncode == 0 and not list(tmp_path.glob("*.png"))


def test_a_trace_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    plan = tmp_path / "mine.yaml"
    plan.write_text("name: mine\nrate: 3\nworks: [{kind: mine.jsonl}]\n")
    done = laya("bench", str(plan), "--no-plots")
    assert done.returncode == 2 and "works[0].kind: mine.jsonl cannot be read" in done.stderr
    (tmp_path / "mine.jsonl").write_text("[" * 100_000)
    done = laya("bench", str(plan), "--no-plots")
    assert done.returncode == 2 and "mine.jsonl, line 1: not JSON" in done.stderr and "Traceback" not in done.stderr


def test_two_targets_take_turns_and_are_compared(running: Cluster, tmp_path: Path) -> None:
    args = ["--target", running.address, "--beside", running.address, "--rounds", "3", "--seconds", "0.3"]
    done = laya("bench", "smoke", *args, "--no-plots", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "did not take turns" not in done.stdout and "verdict" in done.stdout
    assert (tmp_path / "index.html").exists()
    again = laya("bench", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json")
    told = json.loads(again.stdout)
    assert told["paired"] and told["figures"]["ttft_p50"]["verdict"]
    assert again.returncode == (1 if told["overall"] in ("worse", "mixed") else 0)


def test_a_budget_that_runs_out_keeps_a_part(running: Cluster, tmp_path: Path) -> None:
    args = ["--target", running.address, "--rounds", "40", "--seconds", "0.5", "--budget", "2", "--no-plots"]
    done = laya("bench", "smoke", *args, "--out", str(tmp_path))
    assert done.returncode == 6
    assert "will be cut short" in done.stderr and "only a part was run: the budget of 2 s" in done.stderr
    assert 1 <= len(json.loads((tmp_path / "report.json").read_text())["rounds"]) < 40


def test_an_interruption_keeps_a_part(running: Cluster, tmp_path: Path) -> None:
    argv = ["bench", "smoke", "--target", running.address, "--seconds", "1", "--rounds", "40", "--no-plots"]
    popen = subprocess.Popen(
        [sys.executable, "-m", "shared.cli.main", *argv, "--out", str(tmp_path)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert popen.stderr is not None and "round 1 of 40" in popen.stderr.readline()
        popen.send_signal(signal.SIGINT)
        assert popen.wait(30) == 130
    finally:
        popen.kill()
        popen.communicate()
    assert json.loads((tmp_path / "report.json").read_text())["partial"] == "it was interrupted"


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["nope"], 2, "there is no plan 'nope'"),
        (["missing.yaml"], 2, "cannot be read"),
        (["smoke", "--target", "192.0.2.1:80"], 2, "not loopback"),
        (["smoke", "--target", "here"], 2, "must be HOST:PORT"),
        (["smoke", "--rate", "-1"], 2, "rate: must be"),
        (["smoke", "--beside", "127.0.0.1:1"], 2, "--beside needs --target"),
        (["smoke", "--target", "127.0.0.1:1", "--ca", "/nowhere.pem"], 2, "--ca"),
        (["diff", "README.md", "README.md"], 2, "no report of laya bench"),
    ],
)
def test_bad_input_is_one_line_and_a_code(argv: list[str], code: int, says: str, tmp_path: Path) -> None:
    done = laya("bench", *argv, *([] if argv[0] == "diff" else ["--no-plots", "--out", str(tmp_path / "x")]))
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "x").exists()


def test_a_target_that_is_down_ends_with_four(tmp_path: Path) -> None:
    done = laya("bench", "smoke", "--target", f"127.0.0.1:{free_port()}", "--no-plots", "--out", str(tmp_path / "x"))
    assert done.returncode == 4 and "nothing answers" in done.stderr and not (tmp_path / "x").exists()


def test_a_router_without_nodes_is_half_up(tmp_path: Path) -> None:
    with cluster(Spec(nodes=0)) as empty:
        done = laya("bench", "smoke", "--target", empty.address, "--no-plots", "--out", str(tmp_path / "x"))
    assert done.returncode == 4 and "serves no model now" in done.stderr


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nf = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'matplotlib' else f(name, package)\n"
    )
    done = laya("bench", "smoke", "--out", str(tmp_path / "x"), PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 3 and "pip install matplotlib" in done.stderr and "--no-plots" in done.stderr


def test_plans_are_listed_and_the_help_names_the_codes() -> None:
    listed = laya("bench", "plans").stdout
    assert [line.split()[0] for line in listed.splitlines()][:4] == ["smoke", "chat", "burst", "prefix"]
    assert "Exit codes" in laya("bench", "--help").stdout


def test_peers_and_laya_stand_before_the_same_simulated_nodes() -> None:
    wanted = "nginx" if peers_setup.find("nginx") else ""
    done = laya(
        "--only", "scheduling", "--scenarios", "dying-node", "--rounds", "1", "--seconds", "1", "--peers", wanted,
        "--json", module="loadtest.bench_peers",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [rows] = json.loads(done.stdout)["tables"].values()
    targets = ["laya", "nginx"] if wanted else ["laya"]
    assert [(r["scenario"], r["target"]) for r in rows] == [("dying-node", target) for target in targets]
    assert all(r["ttft_p50_ms"] > 0 and r["good_percent"] > 0 for r in rows)


def test_routed_and_direct_take_turns() -> None:
    argv = ["--engine", "sim", "--rounds", "2", "--probes", "4", "--json"]
    done = laya(*argv, module="loadtest.bench_vllm")
    assert done.returncode in (0, 1), done.stderr  # a simulator's figures may miss an aim of vLLM's
    told = json.loads(done.stdout)
    assert len(told["ttft_ms"]) == 4 and len(told["tokens"]) == 2 and told["errors"] == 0
    assert all(rate > 0 for pair in told["tokens"] for rate in pair)


def test_a_tiny_soak_leaves_its_record(tmp_path: Path) -> None:
    out = tmp_path / "soak"
    done = laya("--seconds", "2", "--wave", "0.3", "--rate", "20", "--out", str(out), module="loadtest.soak")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "0 failed" in done.stdout and "too short to say" in done.stdout
    assert {p.name for p in out.iterdir()} == {"soak.csv", "soak.png", "verdict.md"}
    rows = [line.split(",") for line in (out / "soak.csv").read_text().splitlines()[1:]]
    seen = {(process, figure) for _, process, figure, _ in rows}
    assert {(p, f) for p in ("router", "node-1", "node-2") for f in ("rss", "files", "tasks", "streams")} <= seen
    assert ("store", "store") in seen and all(float(row[3]) >= 0 for row in rows)
