"""Real processes for tests: a router and nodes as a user would start them, with their ready lines read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from shared.cli.supervise import die_with_parent
from tests.support import leaks
from tests.support.adopted import Adopted, Notices, adopt_orphans

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT = 30.0


class Proc:
    """One process with a ready pipe; its output goes to a file that is shown when it fails."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        fetch: Callable[[str], str | None] = leaks.page,
        folder: str | None = None,
    ) -> None:
        """``prefix`` stands before the command; ``fetch`` reads a page of a process that is not reached plainly.

        The output goes to a file in ``folder``, the system's temporary one by default.
        """
        self.name = name
        self._fetch = fetch
        self.log = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed by stop()
            prefix=f"laya-{name}-", suffix=".log", delete=False, dir=folder
        )
        self._notices = Notices(f"{self.log.name}.sock")
        self._read, write = os.pipe()
        self._buffer = b""
        self.events: list[dict[str, Any]] = []
        self.leaks_looked_for = True  # by ``stop``; off where a test leaves requests running on purpose
        self._baseline: leaks.Baseline | None = None
        try:
            self.popen: subprocess.Popen[bytes] | Adopted = subprocess.Popen(
                [*prefix, sys.executable, "-m", *argv, "--ready-fd", str(write)],
                cwd=ROOT,
                env={**os.environ, "NOTIFY_SOCKET": self._notices.path, **(env or {})},
                stdout=self.log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=(write,),
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        finally:
            os.close(write)

    def wait_event(self, kind: str, timeout: float = START_LIMIT) -> dict[str, Any]:
        """The first event of a kind; fails with the process's output when it does not come."""
        deadline = time.monotonic() + timeout
        while True:
            for event in self.events:
                if event.get("event") == kind:
                    return event
            left = deadline - time.monotonic()
            assert left > 0, f"{self.name}: no {kind!r} within {timeout} s\n{self.output()}"
            readable, _, _ = select.select([self._read], [], [], min(left, 0.5))
            if readable:
                chunk = os.read(self._read, 65536)
                if not chunk:
                    code = self.popen.wait(timeout=10)
                    raise AssertionError(f"{self.name} ended with {code} before {kind!r}\n{self.output()}")
                *lines, self._buffer = (self._buffer + chunk).split(b"\n")
                self.events += [json.loads(line) for line in lines if line]
                if self._baseline is None and self.events and self.events[-1].get("event") == "ready":
                    self._baseline = leaks.baseline(self.popen.pid, self.events[-1], self._fetch)

    @property
    def ready(self) -> dict[str, Any]:
        """Its ready line."""
        return self.wait_event("ready")

    @property
    def address(self) -> str:
        """host:port it serves on."""
        return str(self.ready["address"])

    def output(self) -> str:
        """What it wrote so far, the last 8 KB."""
        return Path(self.log.name).read_bytes()[-8192:].decode("utf-8", "replace")

    def left(self, limit: float = leaks.REST_LIMIT) -> list[str]:
        """What its requests have left behind in it."""
        return leaks.left_behind(self._baseline, limit) if self._baseline is not None else []

    def replace(self, timeout: float = START_LIMIT) -> subprocess.Popen[bytes] | Adopted:
        """Have a router replace itself; once another process serves in its place this is that one.

        Returns the process before, which ends by itself.
        """
        before = self.popen
        before.send_signal(signal.SIGUSR2)
        assert self.replaced(timeout), f"{self.name}: no successor within {timeout} s\n{self.output()}"
        return before

    def replaced(self, timeout: float) -> bool:
        """Whether another process comes to serve in its place in time; then this is that one."""
        adopt_orphans()
        said = self._notices.wait("MAINPID=", timeout)
        if not said:
            return False
        self.popen = Adopted(int(said))
        base = self._baseline
        self._baseline = leaks.baseline(self.popen.pid, self.ready, self._fetch)
        if base is not None and self._baseline is not None:  # workers may have yet to say what they have
            self._baseline.tasks = max(self._baseline.tasks, base.tasks)
            self._baseline.files = max(self._baseline.files, base.files)
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def stop(self, timeout: float = 15.0) -> int:
        """SIGTERM and wait; SIGKILL past the time-out. Returns the exit code.

        What its requests have left behind in it is an AssertionError, once it has ended.
        """
        left: list[str] = []
        try:
            if self.popen.poll() is None:
                self.signal(signal.SIGCONT)
                if self.leaks_looked_for:
                    left = self.left()
                self.signal(signal.SIGTERM)
                try:
                    self.popen.wait(timeout)
                except subprocess.TimeoutExpired:
                    self.kill()
        finally:
            with contextlib.suppress(OSError):
                os.close(self._read)
            self.log.close()
            self._notices.close()
        assert not left, f"{self.name} was left with: {'; '.join(left)}\n{self.output()}"
        assert self.popen.returncode is not None
        return self.popen.returncode

    def kill(self) -> None:
        """SIGKILL at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(self.popen.pid), signal.SIGKILL)
        self.popen.wait(5)


@dataclass
class Spec:
    """What a test cluster is made of."""

    nodes: int = 1
    token: str = "test-cluster-token"
    router: dict[str, str] = field(default_factory=dict)  # environment of the router
    node: dict[str, str] = field(default_factory=dict)  # environment of the nodes
    router_args: tuple[str, ...] = ()
    node_args: tuple[str, ...] = ()


class Cluster:
    """One router and some ``sim`` nodes; nodes are static, so no store is needed."""

    def __init__(self, spec: Spec | None = None) -> None:
        self.spec = spec or Spec()
        self.nodes: list[Proc] = []
        self.router: Proc

    def __enter__(self) -> Cluster:
        try:
            self.nodes = [self.start_node(i) for i in range(self.spec.nodes)]
            addresses = [n.address for n in self.nodes]
            argv = ["router_node.main", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
            for address in addresses:
                argv += ["--node", address]
            env = {"LAYA_SERVER__CLUSTER_TOKEN": self.spec.token, **self.spec.router}
            self.router = Proc("router", [*argv, *self.spec.router_args], env)
            self.wait_ready(len(addresses))
        except BaseException:
            self.close()
            raise
        return self

    def start_node(self, i: int, port: int = 0) -> Proc:
        """Start one more node; it is not waited for."""
        argv = ["inference_node.main", "--engine", "sim", "--host", "127.0.0.1", "--port", str(port)]
        env = {"LAYA_SERVER__CLUSTER_TOKEN": self.spec.token, **self.spec.node}
        return Proc(f"node-{i}", [*argv, "--node-id", f"node-{i}", *self.spec.node_args], env)

    @property
    def address(self) -> str:
        """The router's public address."""
        return self.router.address

    @property
    def admin(self) -> str:
        """The router's private address."""
        return str(self.router.ready["admin"])

    def wait_ready(self, nodes: int, timeout: float = START_LIMIT) -> None:
        """Until the router has that many ready nodes."""
        deadline = time.monotonic() + timeout
        while self.metric("laya_router_nodes", state="ready") < nodes:
            assert time.monotonic() < deadline, f"not {nodes} ready nodes\n{self.router.output()}\n" + "\n".join(
                n.output() for n in self.nodes
            )
            time.sleep(0.02)

    def metrics(self) -> str:
        """The router's exposition."""
        return fetch(f"http://{self.admin}/metrics")

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that carry these labels."""
        return metric(self.metrics(), name, **labels)

    def close(self) -> list[int]:
        """Stop everything, router first; the exit codes."""
        procs = ([self.router] if hasattr(self, "router") else []) + self.nodes
        codes: list[int] = []
        with contextlib.ExitStack() as stack:  # one that fails its own look keeps none of the others alive
            for proc in reversed(procs):
                stack.callback(_stop_into, proc, codes)
        return codes

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        codes = self.close()
        if kind is None:
            assert set(codes) <= {0, -signal.SIGKILL}, f"exit codes {codes}\n{self.router.output()}"


def _stop_into(proc: Proc, codes: list[int]) -> None:
    codes.append(proc.stop())


def children(pid: int) -> list[int]:
    """Processes that a process has started and that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def fetch(url: str, timeout: float = 10.0) -> str:
    """Body of a GET."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return str(answer.read().decode())


def metric(text: str, name: str, **labels: str) -> float:
    """Sum of the samples called ``name`` in an exposition that carry these labels; a name it lacks is an error."""
    family = re.sub("_(bucket|sum|count)$", "", name)
    assert re.search(rf"^(# TYPE )?({name}|{family})[ {{]", text, re.MULTILINE), f"there is no metric {name}"
    total = 0.0
    for line in text.splitlines():
        if line.startswith(name) and line[len(name)] in " {":
            head, _, value = line.rpartition(" ")
            if all(f'{key}="{label}"' in head for key, label in labels.items()):
                total += float(value)
    return total


@contextlib.contextmanager
def cluster(spec: Spec | None = None) -> Iterator[Cluster]:
    """A running cluster."""
    with Cluster(spec) as running:
        yield running
