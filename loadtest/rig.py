"""Processes that a benchmark starts and stops: canned nodes, a router, and peers in front of the same nodes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from loadtest.peers_setup import find
from shared.cli.store import NoEmbeddedStore, store_command
from shared.cli.supervise import die_with_parent

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT = 20.0
MODEL = "canned"
_TOKEN = "benchmark"


_end_with_parent = functools.partial(die_with_parent, signal.SIGTERM)  # a killed nginx would leave its workers


class RigError(Exception):
    """Something a benchmark needs did not start: one sentence."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system seconds these processes have used, to the nanosecond; their children are not counted."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~pid << 3) | 2)  # Linux: the CPU clock of a whole process
    return total


def quiet(pids: Sequence[int], limit: float = 5.0) -> None:
    """Wait until these processes rest, for ``limit`` seconds at most: some go on with what its caller gave up."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        used = cpu_seconds(pids)
        time.sleep(0.05)
        if cpu_seconds(pids) - used < 0.005:
            return


def rss_bytes(pid: int) -> int:
    """Resident set of a process, 0 when it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Rig:
    """A context in which processes live; all are stopped at its end."""

    def __init__(self) -> None:
        self._procs: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="laya-bench-")
        self.folder = Path(self._folder.name)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        for proc in self._procs:
            with contextlib.suppress(ProcessLookupError):
                proc.send_signal(signal.SIGTERM)
        for proc in self._procs:
            try:
                proc.wait(5)
            except subprocess.TimeoutExpired:
                _kill(proc)
        self._folder.cleanup()

    def kill(self, pid: int) -> None:
        """End one process at once, as a crash would."""
        for proc in self._procs:
            if proc.pid == pid:
                _kill(proc)

    def again(self, module: str, *args: str, env: dict[str, str] | None = None) -> int:
        """Start a module of ours without waiting for it; its pid."""
        log = (self.folder / f"{module}-{len(self._procs)}.log").open("wb")
        with log:
            proc = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                cwd=ROOT,
                env={**os.environ, "LAYA_SERVER__CLUSTER_TOKEN": _TOKEN, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        self._procs.append(proc)
        return proc.pid

    def store(self) -> str:
        """Start an embedded store; its URL. Raises RigError."""
        try:
            argv, url = store_command(self.folder)
        except NoEmbeddedStore as error:
            raise RigError(str(error)) from None
        log = (self.folder / "store.log").open("wb")
        with log:
            proc = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
            )
        self._procs.append(proc)
        path, deadline = Path(url.removeprefix("unix://")), time.monotonic() + START_LIMIT
        while not path.exists():
            if proc.poll() is not None or time.monotonic() > deadline:
                raise RigError(f"the store does not start: {Path(log.name).read_text('utf-8', 'replace')[-1000:]}")
            time.sleep(0.02)
        return url

    def python(
        self, module: str, *args: str, env: dict[str, str] | None = None, limit: float = START_LIMIT
    ) -> tuple[str, int, dict[str, Any]]:
        """Start a module of ours with a ready pipe; its address, pid and ready line. ``limit`` is in seconds."""
        read, write = os.pipe()
        log = (self.folder / f"{module}-{len(self._procs)}.log").open("wb")
        try:
            proc = subprocess.Popen(
                [sys.executable, "-m", module, *args, "--ready-fd", str(write)],
                cwd=ROOT,
                env={**os.environ, "LAYA_SERVER__CLUSTER_TOKEN": _TOKEN, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                preexec_fn=die_with_parent,
            )
        finally:
            os.close(write)
            log.close()
        self._procs.append(proc)
        deadline = time.monotonic() + limit
        data = b""
        with os.fdopen(read, "rb", buffering=0) as pipe:
            while not any(b'"ready"' in line for line in data.split(b"\n")[:-1]):
                readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
                chunk = pipe.read(65536) if readable else b""
                if not chunk:
                    why = "ended before it was ready" if readable else f"was not ready within {limit:.0f} s"
                    raise RigError(f"{module} {why}: {Path(log.name).read_text('utf-8', 'replace')[-2000:]}")
                data += chunk
        ready = next(json.loads(line) for line in data.splitlines() if b'"ready"' in line)
        return ready["address"], proc.pid, ready

    def nodes(self, count: int, *args: str) -> list[str]:
        """Start canned nodes; their addresses."""
        return [self.python("loadtest.fake_node", "--node-id", f"fake-{i}", *args)[0] for i in range(count)]

    def many_nodes(self, count: int, *args: str) -> list[str]:
        """Start so many canned nodes in one process; their addresses."""
        _, _, ready = self.python("loadtest.fake_node", "--node-id", "fake", "--count", str(count), *args)
        return list(ready.get("addresses", []))

    def router(
        self,
        nodes: Sequence[str],
        *args: str,
        env: dict[str, str] | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> tuple[str, int, str]:
        """Start a router in front of nodes and wait until all are ready to it; address, pid, private address.

        ``trust`` is for a router that ``env`` makes serve TLS.
        """
        argv = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
        for node in nodes:
            argv += ["--node", node]
        quiet = {"LAYA_SERVER__ACCESS_LOG": "false", **(env or {})}
        address, pid, ready = self.python("router_node.main", *argv, *args, env=quiet)
        url = f"{'https' if trust else 'http'}://{address}/readyz"
        deadline = time.monotonic() + START_LIMIT
        found = 0
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2, context=trust) as answer:
                admin = ready.get("admin", "")
                found = nodes_ready(admin)
                if answer.status == 200 and found >= len(nodes):
                    return address, pid, admin
            if time.monotonic() > deadline:
                raise RigError(f"to the router {found} are ready of {len(nodes)} nodes")
            time.sleep(0.02)

    def nginx(self, nodes: Sequence[str]) -> tuple[str, list[int]] | None:
        """nginx's ``grpc_pass`` in front of the nodes with kept-alive connections; None when it is not installed."""
        binary = find("nginx")
        if binary is None:
            return None
        port = free_port()
        servers = "".join(f"server {node}; " for node in nodes)
        config = self.folder / "nginx.conf"
        config.write_text(
            f"daemon off; pid {self.folder}/nginx.pid; error_log {self.folder}/nginx.log crit; worker_processes 2;\n"
            "events { worker_connections 8192; }\n"
            f"http {{ access_log off; client_body_temp_path {self.folder}/b; proxy_temp_path {self.folder}/p;\n"
            f" fastcgi_temp_path {self.folder}/f; uwsgi_temp_path {self.folder}/u; scgi_temp_path {self.folder}/s;\n"
            f" upstream nodes {{ {servers} keepalive 256; keepalive_requests 100000000; }}\n"
            f" server {{ listen 127.0.0.1:{port} http2; http2_max_concurrent_streams 4096;"
            " keepalive_requests 100000000; location / { grpc_pass grpc://nodes; } } }\n"
        )
        pid = self.spawn([binary, "-c", str(config), "-p", str(self.folder)], port)
        return f"127.0.0.1:{port}", [pid, *workers_of(pid, 2)]

    def spawn(
        self, argv: Sequence[str], port: int, env: dict[str, str] | None = None, limit: float = START_LIMIT
    ) -> int:
        """Start a program that is not ours and wait until it listens on ``port``; its pid. Raises RigError."""
        log = (self.folder / f"{Path(argv[0]).name}-{len(self._procs)}.log").open("wb")
        with log:
            proc = subprocess.Popen(
                argv,
                cwd=self.folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
            )
        self._procs.append(proc)
        try:
            wait_for_port(port, proc, limit)
        except RigError as error:
            said = Path(log.name).read_text("utf-8", "replace")[-1000:]
            raise RigError(f"{Path(argv[0]).name}: {error}: {said}") from None
        return proc.pid


def nodes_ready(admin: str) -> int:
    """How many nodes are ready to the router whose private address this is. Raises OSError."""
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=5) as page:
        found = re.search(rb'^laya_router_nodes\{state="ready"\} (.*)$', page.read(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _kill(proc: subprocess.Popen[bytes]) -> None:
    """End a process and its direct children at once: those of nginx, say, would go on without it."""
    workers = children(proc.pid)
    proc.kill()
    proc.wait(5)
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def workers_of(pid: int, count: int) -> list[int]:
    """The children of a server that listens before it starts them, once there are ``count``."""
    deadline = time.monotonic() + START_LIMIT
    while len(found := children(pid)) < count:
        if time.monotonic() > deadline:
            raise RigError(f"process {pid} has {len(found)} workers, not {count}")
        time.sleep(0.02)
    return found


def wait_for_port(port: int, proc: subprocess.Popen[bytes] | None = None, limit: float = START_LIMIT) -> None:
    """Until something listens; RigError when nothing does, or ``proc`` has ended."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and (proc is None or proc.poll() is None):
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RigError(f"nothing listens on port {port}")
