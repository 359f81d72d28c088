"""A node's process in a control group that fills up: it sheds, lives, finishes what runs, and takes requests again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_node.memory.watch import DiskFiles, Watch
from shared.cli.supervise import die_with_parent
from tests.support.processes import Proc, fetch, metric

MIB = 1 << 20
LIMIT = 1024 * MIB
_HOG = """
import sys
held = []
for line in sys.stdin:
    size = int(line)
    held = [b"x" * size] if size else []
    print("done", flush=True)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of a gibibyte; skips where none can be made."""
    for root, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        folder = Path(root) / f"laya-guard-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            break
        folder.rmdir()
    else:
        pytest.skip("no control group can be made here")
    try:
        (folder / limit).write_text(str(LIMIT))
        yield folder
    finally:
        deadline = time.monotonic() + 10
        while (folder / "cgroup.procs").read_text().split() and time.monotonic() < deadline:
            time.sleep(0.02)
        folder.rmdir()


def ask(address: str, tokens: int = 2, stream: bool = False) -> Any:
    body = {"model": "demo", "prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    request = urllib.request.Request(
        f"http://{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=60)


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def status(address: str) -> int:
    try:
        with ask(address) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as e:
        with e:
            assert e.code != 429 or json.loads(e.read())["error"]["code"] == "overloaded"
            assert e.code != 429 or int(e.headers["retry-after"]) >= 1
            return e.code


def test_a_node_in_a_full_control_group_sheds_and_recovers(group: Path):
    env = {
        "LAYA_INFERENCE__GUARD__INTERVAL": "0.1",
        "LAYA_INFERENCE__GUARD__RESUME_SECONDS": "0.3",
        "LAYA_INFERENCE__SIM__DECODE_BASE_MS": "20",
    }
    argv = ["inference_node.main", "--engine", "sim", "--port", "0", "--model", "demo"]
    node = Proc("guarded", argv, env)
    hog = subprocess.Popen(
        [sys.executable, "-c", _HOG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )

    def hold(size: int) -> None:
        assert hog.stdin is not None and hog.stdout is not None
        hog.stdin.write(f"{size}\n")
        hog.stdin.flush()
        assert hog.stdout.readline() == "done\n"

    def shedding(page: str) -> bool:
        return metric(page, "laya_node_shedding", cause="memory") == 1.0

    try:
        for pid in (node.popen.pid, hog.pid):
            (group / "cgroup.procs").write_text(str(pid))
        address = node.address
        assert status(address) == 200 and not shedding(fetch(f"http://{address}/metrics"))
        with ask(address, tokens=150, stream=True) as running:  # three seconds
            first = running.readline()
            (used,) = (share for share, limit in Watch(DiskFiles(), hog.pid)._limits() if limit == LIMIT)
            assert used is not None
            hold(int((0.97 - used) * LIMIT))
            until(lambda: shedding(fetch(f"http://{address}/metrics")), "it sheds")
            assert status(address) == 429
            events = [line for line in [first, *running] if line.startswith(b"data: ")]
            assert len(events) == 151 and events[-1].strip() == b"data: [DONE]"
        assert node.popen.poll() is None
        hold(0)
        until(lambda: status(address) == 200, "it takes requests again")
        assert metric(fetch(f"http://{address}/metrics"), "laya_node_sheds_total") == 1.0
        assert "memory is short: " in node.output() and "of 1 GiB in use" in node.output()
    finally:
        code = node.stop()
        hog.kill()
        hog.wait()
    assert code == 0
