"""``laya up`` under load, with clients that leave: every process gives back what it took, and ends with Ctrl-C."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from tests.faults.load import Load
from tests.faults.tally import Tally
from tests.support import leaks
from tests.support.alive import alive
from tests.support.ports import until
from tests.support.up import Up

pytestmark = pytest.mark.integration

SLACK = 4  # files of the parent: a log that is being written


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def baselines(up: Up) -> list[leaks.Baseline]:
    """What the router and the nodes hold, by their process."""
    found = []
    nodes = {one["node_id"]: one for one in json.loads(up.laya("nodes", "--json").stdout)}
    for pid in up.children():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        ready: dict[str, object] = {}
        if "router_node.main" in words:
            ready = {"admin": up.ready["admin"]}
        elif "inference_node.main" in words:
            ready = {"address": nodes[words[words.index("--node-id") + 1]]["address"]}
        if ready:
            base = leaks.baseline(pid, ready)
            assert base is not None, words
            found.append(base)
    return found


async def test_nothing_is_left_after_load_nor_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    up = Up(tmp_path / "cache", "--engine", "sim", "--nodes", "2")
    try:
        up.ready = up.event("ready")
        await until(lambda: up.laya("nodes").stdout.count("ready") == 2, "both nodes are ready", timeout=30)
        before = baselines(up)
        assert [base.kind for base in before].count("node") == 2 and len(before) == 3
        parent = up.popen.pid
        held, running, children = files(parent), threads(parent), sorted(up.children())

        load = Load([up.ready["address"]], clients=8, seed=5, pause=0.02)
        load.tally = tally = Tally("load")
        load.start()
        await until(lambda: tally.sent > 150, "requests have been answered", timeout=60)
        await load.stop()
        assert tally.wrong == tally.hung == tally.failed == tally.cut == 0, (tally.reasons, tally.examples)
        assert tally.left > 0

        for base in before:
            assert leaks.left_behind(base) == []
        assert sorted(up.children()) == children
        assert files(parent) <= held + SLACK and threads(parent) <= running
        seen = up.descendants()
        assert up.stop() == 0
    finally:
        up.popen.kill()
    assert not any(alive(pid) for pid in seen)
    host, _, port = up.ready["address"].rpartition(":")
    with socket.socket() as sock:
        assert sock.connect_ex((host, int(port))) != 0
    assert list(temporary.iterdir()) == []
    assert list((tmp_path / "cache" / "laya" / "up").iterdir()) == []
