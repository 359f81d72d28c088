"""``laya up`` as a user runs it, with a cache folder of its own, and the commands that talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Up:
    """A running ``laya up --json`` with its own cache folder."""

    def __init__(self, cache: Path, *args: str, **env: str) -> None:
        """``env`` is added to the environment."""
        self.env = {**os.environ, **env, "XDG_CACHE_HOME": str(cache), "XDG_CONFIG_HOME": str(cache / "config")}
        self.ready: dict[str, Any] = {}
        self.seen: list[int] = []
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "shared.cli.main", "up", "--json", "--port", "0", *args],
            cwd=ROOT,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def event(self, kind: str) -> dict[str, Any]:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            event = json.loads(line)
            if event["event"] == kind:
                return dict(event)
        assert self.popen.stderr is not None
        raise AssertionError(f"laya up ended without {kind!r}: {self.popen.stderr.read()}")

    def laya(self, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shared.cli.main", *args],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=60,
            check=False,
        )

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def child(self, name: str) -> int:
        """The process of a node, by its name."""
        words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in self.children()}
        return next(pid for pid, said in words.items() if name.encode() in said)

    def descendants(self) -> list[int]:
        """Every process below this one, the engines' own included."""
        found, todo = [], self.children()
        while todo:
            pid = todo.pop()
            found.append(pid)
            try:
                todo += [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            except OSError:
                continue
        return found

    def stop(self) -> int:
        self.seen = self.descendants()
        self.popen.send_signal(signal.SIGINT)
        try:
            return self.popen.wait(30)
        finally:
            self.popen.kill()


@contextlib.contextmanager
def serving(running: Up) -> Iterator[Up]:
    """From its ready line until it is stopped, with 0 and without a process left."""
    try:
        running.ready = running.event("ready")
        yield running
        assert running.stop() == 0
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running.seen), "no process is left")
    finally:
        running.popen.kill()


def wait_for(condition: Callable[[], object], what: str, timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.02)
