"""Two routers, four simulated nodes and a store with sentinels, each on a host of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.faults import limits
from tests.faults.hosts import Host, Network
from tests.faults.limits import Clock, Disk
from tests.faults.slow_link import SlowLink
from tests.faults.store import Store
from tests.support import leaks
from tests.support.certs import Authority, Pair
from tests.support.processes import Proc, children, metric

KEEPALIVE: Final = 2.0  # seconds of silence until a PING
KEEPALIVE_TIMEOUT: Final = 1.0
FIRST_TOKEN: Final = 5.0
TOKEN: Final = "fault-suite-token"
_SETTLE: Final = 20.0  # seconds for a successor to serve once nothing is broken any more
_COMMON: Final = {
    "LAYA_SERVER__CLUSTER_TOKEN": TOKEN,
    "LAYA_SERVER__INSECURE": "true",
    "LAYA_SERVER__KEEPALIVE_TIME": str(KEEPALIVE),
    "LAYA_SERVER__KEEPALIVE_TIMEOUT": str(KEEPALIVE_TIMEOUT),
    "LAYA_SERVER__DRAIN_TIMEOUT": "15",
    "LAYA_SERVER__LOG_FORMAT": "json",
}
_ROUTER: Final = {
    "LAYA_ROUTER__DEADLINES__FIRST_TOKEN": str(FIRST_TOKEN),
    "LAYA_ROUTER__DEADLINES__BETWEEN_TOKENS": "4",
}
_NODE: Final = {
    "LAYA_INFERENCE__HEARTBEAT": "1",
    "LAYA_INFERENCE__REGISTRATION_TTL": "6",
    "LAYA_INFERENCE__RAMP_SECONDS": "0",
    "LAYA_INFERENCE__SIM__KV_TOKENS": "65536",
}
ROUTER_PORT: Final = 8000
ADMIN_PORT: Final = 8001
NODE_PORT: Final = 9000


class Member:
    """One process of ours in its host, which may be started again at the same address."""

    def __init__(self, host: Host, argv: Sequence[str], env: dict[str, str], kind: str, folder: str) -> None:
        self.folder = folder
        self.host = host
        self.kind = kind
        self.argv = list(argv)
        self.env = env
        self.proc: Proc | None = None
        self.logs: list[str] = []
        self.replacing = False  # a router that was told to replace itself, and may still

    @property
    def name(self) -> str:
        return self.host.name

    def start(self) -> Proc:
        """Start it; it is not waited for."""
        self.proc = Proc(self.name, self.argv, self.env, self.host.prefix, self._fetch, self.folder)
        self.logs.append(self.proc.log.name)
        return self.proc

    def _fetch(self, url: str) -> str | None:
        if self.kind == "node":
            url = url.replace("http:", "https:")
        return self.host.inside(lambda: leaks.page(url))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it, if it runs."""
        if self.proc is not None:
            self.proc.signal(number)

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.proc is not None and self.proc.popen.poll() is None

    def settle(self, limit: float) -> None:
        """A router that was told to replace itself has ``limit`` seconds to do so, or to give it up."""
        deadline = time.monotonic() + limit
        while self.replacing and self.proc is not None and time.monotonic() < deadline:
            tries = bool(children(self.proc.popen.pid))
            if self.proc.replaced(0.2) or not tries:
                break
        self.replacing = False

    def tail(self) -> str:
        """The end of its log."""
        return self.proc.output()[-1500:] if self.proc is not None else ""

    def restart(self) -> None:
        """Start it anew at its old address, and wait until it is ready."""
        if self.proc is not None:
            self.proc.leaks_looked_for = False
            with contextlib.suppress(AssertionError):
                self.proc.stop()
        assert self.start().ready

    def metrics(self) -> str:
        """Its metrics page; empty when it cannot be read now."""
        if self.proc is None or not self.runs:
            return ""
        at = self.proc.ready["admin"] if self.kind == "router" else self.proc.address
        return self._fetch(f"http://{at}/metrics") or ""


class Site:
    """All of it. ``node_hosts`` etc. are in the order of their names."""

    def __init__(self, nodes: int = 4, env: dict[str, str] | None = None, slow: bool = False) -> None:
        """``env`` is for the nodes. With ``slow`` the way to the last one is a ``slow_link``."""
        self._env = env or {}
        self._slow = slow
        self.slow_link: SlowLink | None = None
        self.network = Network()
        self._nodes = nodes
        self.folder = tempfile.TemporaryDirectory(prefix="laya-faults-")
        self.disk = Disk(self.folder.name)
        self.authority = Authority(Path(self.folder.name))
        self.pairs: dict[str, Pair] = {}
        self.clock = Clock(self.folder.name)
        self.routers: list[Member] = []
        self.nodes: list[Member] = []
        self.extra: list[Member] = []
        self.store: Store

    def __enter__(self) -> Site:
        try:
            self.network.__enter__()
            self.disk.mount()
            self.store = Store(self.network.host("s1"), self.network.host("s2"))
            self.store.start()
            for i in range(self._nodes):
                self.nodes.append(self.node(f"n{i + 1}", **self._env))
            if self._slow:
                self._slow_down(self.nodes[-1])
            for i in range(2):
                self.routers.append(self._router(f"r{i + 1}"))
            for member in (*self.nodes, *self.routers):
                member.start()
            for member in self.routers:
                assert member.proc is not None and member.proc.ready
            self.wait_ready(30)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def node(self, name: str, **env: str) -> Member:
        """A node on a new host; it is not started."""
        host = self.network.host(name)
        argv = ["inference_node.main", "--engine", "sim", "--host", host.address, "--port", str(NODE_PORT)]
        argv += ["--node-id", name, "--redis", self.store.url]
        self.pairs[name] = pair = self.authority.pair(name, addresses=[host.address])
        tls = {"LAYA_SERVER__TLS__CERT_FILE": pair.cert, "LAYA_SERVER__TLS__KEY_FILE": pair.key}
        return Member(host, argv, {**_COMMON, **_NODE, **tls, **self.clock.env(name), **env}, "node", self.disk.folder)

    def _slow_down(self, node: Member) -> None:
        node.argv[node.argv.index("--port") + 1] = str(NODE_PORT + 1)
        node.env["LAYA_INFERENCE__ADVERTISE"] = f"{node.host.address}:{NODE_PORT}"
        self.slow_link = SlowLink(node.host, NODE_PORT, NODE_PORT + 1, self.folder.name)

    def _router(self, name: str) -> Member:
        host = self.network.host(name)
        argv = ["router_node.main", "--host", host.address, "--port", str(ROUTER_PORT), "--admin-port", str(ADMIN_PORT)]
        argv += ["--redis", self.store.url]
        snapshot = {"LAYA_ROUTER__ROUTES__SNAPSHOT_FILE": f"{self.disk.folder}/{name}.routes"}
        snapshot["LAYA_ROUTER__NODE_TLS__CA_FILE"] = self.authority.file
        env = {**_COMMON, **_ROUTER, **snapshot, **self.clock.env(name)}
        return Member(host, argv, env, "router", self.disk.folder)

    @property
    def addresses(self) -> list[str]:
        """What clients know."""
        return [f"{router.host.address}:{ROUTER_PORT}" for router in self.routers]

    def ready_nodes(self, router: Member) -> int:
        """How many nodes a router sends requests to."""
        text = router.metrics()
        return int(metric(text, "laya_router_nodes", state="ready")) if text else -1

    def sent_on(self) -> dict[int, int]:
        """How often each router, by its process's number, has sent a request or moved a stream to another node."""
        out = {}
        for router in self.routers:
            text = router.metrics()
            if text and router.proc is not None:
                retries = metric(text, "laya_router_events_total", event="retry")
                moves = metric(text, "laya_router_migrations_total", outcome="moved")
                out[router.proc.popen.pid] = int(retries + moves)
        return out

    def wait_ready(self, limit: float) -> None:
        """Until every router has every node. Fails past ``limit`` seconds."""
        deadline = time.monotonic() + limit
        while True:
            seen = [self.ready_nodes(router) for router in self.routers]
            if all(count >= len(self.nodes) for count in seen):
                return
            assert time.monotonic() < deadline, f"routers see {seen} nodes ready\n{self.tails()}"
            time.sleep(0.1)

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {member.name}\n{member.tail()}" for member in self.members)

    @property
    def members(self) -> list[Member]:
        """Every process of ours."""
        return [*self.routers, *self.nodes, *self.extra]

    def heal(self) -> None:
        """Take every fault of the network away, and start again what has ended."""
        for host in self.network.hosts:
            host.heal()
        if self.slow_link is not None:
            self.slow_link.set(0.0, 0.0)
        self.disk.free()
        self.clock.set(0)
        for member in self.members:
            if member.proc is not None:
                limits.allow_files(member.proc.popen.pid)
                limits.release_memory(member.proc.popen.pid)  # of one that was killed too: its group is left
        for server in (*self.store.servers, *self.store.sentinels):
            if server.process is None:
                server.start()
            server.signal(signal.SIGCONT)
        for member in (*self.nodes, *self.routers):
            member.signal(signal.SIGCONT)
        for member in (*self.nodes, *self.routers):
            member.settle(_SETTLE)
            if not member.runs:
                member.restart()

    async def left(self) -> list[str]:
        """What requests have left behind in any process."""
        found = await asyncio.gather(*(asyncio.to_thread(m.proc.left, 8.0) for m in self.members if m.proc and m.runs))
        names = [m.name for m in self.members if m.proc and m.runs]
        return [f"{name}: {one}" for name, many in zip(names, found, strict=True) for one in many]

    def tracebacks(self) -> list[str]:
        """Lines of logs that tell of a defect."""
        out = []
        for member in self.members:
            for log in member.logs:
                text = Path(log).read_text("utf-8", "replace")
                at = text.find("Traceback (most recent call last)")
                if at >= 0:
                    out.append(f"{member.name}: {text[at : at + 1500]}")
        return out

    def close(self) -> None:
        """End everything, and take the hosts down."""
        for member in self.members:
            if member.proc is not None:
                member.proc.leaks_looked_for = False
                member.signal(signal.SIGCONT)
                member.signal(signal.SIGTERM)
        with contextlib.ExitStack() as stack:
            stack.callback(self.folder.cleanup)
            stack.callback(self.disk.close)
            stack.callback(self.network.close)
            if self.slow_link is not None:
                stack.callback(self.slow_link.close)
            if hasattr(self, "store"):
                stack.callback(self.store.close)
            for member in self.members:
                if member.proc is not None:
                    stack.callback(member.proc.stop)
