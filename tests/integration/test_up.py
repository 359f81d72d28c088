"""``laya up`` and the commands that talk to it, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.alive import alive
from tests.support.ports import free_port
from tests.support.up import ROOT, Up, wait_for


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("cache"), "--engine", "sim", "--nodes", "2")
    try:
        running.event("ready")
        yield running
        assert running.stop() == 0
    finally:
        running.popen.kill()


def test_generate_says_where_the_time_went(up: Up) -> None:
    plain = up.laya("generate", "hello there", "--max-tokens", "6", "--timing")
    assert plain.returncode == 0 and plain.stdout.strip()
    shown = {line.split()[0]: float(line.split()[1]) for line in plain.stderr.splitlines()}
    assert list(shown) == ["route", "queue", "prefill", "decode", "serialise", "rest", "total"]
    assert all(shown[stage] > 0 for stage in ("route", "prefill", "decode", "serialise"))
    answer = json.loads(up.laya("generate", "hello there", "--max-tokens", "6", "--timing", "--json").stdout)
    stages = answer["stages"]
    assert sum(stages.values()) == pytest.approx(2 * stages["total_seconds"])
    assert "stages" not in json.loads(up.laya("generate", "hello", "--max-tokens", "2", "--json").stdout)


def test_generate_prints_text_and_json(up: Up) -> None:
    plain = up.laya("generate", "hello there", "--max-tokens", "6")
    assert plain.returncode == 0, plain.stderr
    answer = json.loads(up.laya("generate", "hello there", "--max-tokens", "6", "--json").stdout)
    assert answer["text"] == plain.stdout.rstrip("\n")
    assert answer["usage"]["completion_tokens"] == 6


def test_models_and_nodes_are_listed(up: Up) -> None:
    models = json.loads(up.laya("models", "--json").stdout)
    assert [m["engine"] for m in models] == ["sim"]
    wait_for(lambda: len(json.loads(up.laya("nodes", "--json").stdout)) == 2, "both nodes are listed")
    shown = up.laya("nodes")
    assert "ready" in shown.stdout
    assert shown.stderr.startswith("private listener of the router: 127.0.0.1:") and "/metrics" in shown.stderr
    told = json.loads(up.laya("explain", models[0]["name"], "--prompt", "Hello", "--json").stdout)
    assert {one["node_id"] for one in told["candidates"]} == {"node-1", "node-2"}
    shown = up.laya("explain", models[0]["name"], "--prompt-tokens", "500").stdout
    assert "is chosen" in shown and "BARRIER" in shown and told["node_id"] in shown


def test_chat_answers_each_line_and_shows_its_speed(up: Up) -> None:
    talk = up.laya("chat", "--max-tokens", "5", stdin="hello\nand again\n/quit\n")
    assert talk.returncode == 0, talk.stderr
    assert talk.stdout.count("tok/s") == 2


def test_a_drained_node_is_shown_and_comes_back(up: Up) -> None:
    wait_for(lambda: up.laya("nodes").stdout.count("ready") == 2, "both nodes are ready")
    assert up.laya("drain", "node-1").returncode == 0
    wait_for(lambda: "draining" in up.laya("nodes").stdout, "node-1 is draining")
    assert up.laya("generate", "still here", "--max-tokens", "3").returncode == 0
    assert up.laya("drain", "node-1", "--undo").returncode == 0
    wait_for(lambda: up.laya("nodes").stdout.count("ready") == 2, "node-1 is back")


def test_exit_codes_mean_something(up: Up) -> None:
    assert up.laya("generate", "x", "--model", "nope").returncode == 5
    assert up.laya("generate", "x", "--address", "127.0.0.1:1", "--timeout", "5").returncode == 4
    assert up.laya("generate", "x", "--max-tokens", "0").returncode == 2
    bad = up.laya("up", "--config", str(ROOT / "pyproject.toml"))
    assert bad.returncode == 2 and "Traceback" not in bad.stderr


def test_a_crashed_node_is_started_again(up: Up) -> None:
    nodes = json.loads(up.laya("nodes", "--json").stdout)
    before = {n["node_id"]: n["address"] for n in nodes}
    os.kill(up.child("node-2"), signal.SIGKILL)
    assert up.laya("generate", "x", "--max-tokens", "3").returncode == 0

    def back() -> bool:
        now = {n["node_id"]: n for n in json.loads(up.laya("nodes", "--json").stdout)}
        node = now.get("node-2")
        return node is not None and node["state"] == "ready" and node["address"] != before["node-2"]

    wait_for(back, "node-2 serves again at its new address")


def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    running = Up(tmp_path, "--engine", "sim", "--nodes", "2")
    try:
        running.event("ready")
        children = running.children()
        assert len(children) >= 3
    finally:
        running.popen.kill()
        running.popen.wait(10)
    wait_for(lambda: not any(alive(pid) for pid in children), "all children are gone")


def test_four_simulated_nodes_are_ready_soon(tmp_path: Path) -> None:
    running = Up(tmp_path, "--engine", "sim", "--nodes", "4")
    try:
        running.event("ready")
        children = running.children()
        assert running.stop() == 0
    finally:
        running.popen.kill()
    assert not any(alive(pid) for pid in children)


def test_a_second_cluster_does_not_hide_the_first(up: Up) -> None:
    [first] = (Path(up.env["XDG_CACHE_HOME"]) / "laya" / "up").glob("*.json")
    address = json.loads(first.read_text())["address"]
    cache, port = Path(up.env["XDG_CACHE_HOME"]), str(free_port())
    second = Up(cache, "--engine", "sim", "--nodes", "1", "--port", port)
    try:
        other = second.event("ready")["address"]
        refused = up.laya("nodes")
        assert refused.returncode == 2 and address in refused.stderr and other in refused.stderr
        assert len(json.loads(up.laya("nodes", "--json", "--admin", address).stdout)) == 2
        assert len(json.loads(up.laya("nodes", "--json", "--admin", other.rpartition(":")[2]).stdout)) == 1
        assert {path.name for path in (cache / "laya" / "logs").iterdir()} == {"0", port}
        assert second.stop() == 0
    finally:
        second.popen.kill()
    assert len(json.loads(up.laya("nodes", "--json").stdout)) == 2


def test_a_router_that_may_not_replace_itself_says_so(up: Up) -> None:
    os.kill(up.child("router_node.main"), signal.SIGUSR2)
    assert "laya up" in up.event("refused")["why"]


def test_a_taken_port_is_said_at_once(up: Up, tmp_path: Path) -> None:
    [state] = (Path(up.env["XDG_CACHE_HOME"]) / "laya" / "up").glob("*.json")
    address = json.loads(state.read_text())["address"]
    port = address.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "shared.cli.main", "up", "--engine", "sim", "--port", port],
        cwd=ROOT,
        env={**up.env, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "server.port" in done.stderr and "Traceback" not in done.stderr


def test_an_engine_that_is_not_installed_is_refused_with_what_to_install(tmp_path: Path) -> None:
    running = Up(tmp_path, "--engine", "nano-vllm", "--model", str(tmp_path), "--nodes", "1")
    assert running.popen.stderr is not None
    assert running.popen.wait(30) == 3
    failed = running.popen.stdout.read() if running.popen.stdout else ""
    assert "install" in failed
