"""Looks at a cluster while it is under load: room of each node, CPU and memory of each process, where time is spent."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from loadtest.bench.report import NodeSample, ProcessSample, Sample
from loadtest.rig import children, cpu_seconds, rss_bytes
from shared.timing import averaged

_LIMIT = 2.0  # seconds for a page
_LONGEST = 8 << 20
_MOST = 2000  # looks that are kept; then every other one is dropped
_NODE = re.compile(
    r'^laya_router_node_(headroom_tokens|capacity_tokens|running|waiting)\{node="([^"]*)"\} (\S+)$', re.MULTILINE
)
_HISTOGRAM = re.compile(r"^(laya_(?:router|node)_\w*seconds)_(sum|count)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_STAGE = re.compile(r'\bstage="([^"]*)"')
_ONE = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_ROUTER = {"process_cpu_seconds_total": "cpu", "process_resident_memory_bytes": "rss"}


@dataclass(slots=True)
class Watched:
    """What there is to see. ``pids`` are of processes on this machine, by name; pages are host:port."""

    admin: str = ""
    pids: dict[str, int] = field(default_factory=dict)
    node_pages: list[str] = field(default_factory=list)
    token: str = ""
    node_processes: bool = True
    """Take CPU and memory of nodes from their pages too."""


async def page(address: str, path: str = "/metrics", token: str = "") -> str:
    """A page of a server of ours. Raises OSError (TimeoutError is one) when it cannot be had."""
    host, _, port = address.rpartition(":")
    head = f"GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n"
    if token:
        head += f"laya-cluster-token: {token}\r\n"
    async with asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            writer.write(head.encode() + b"\r\n")
            data = await reader.read(-1) if path else b""
        finally:
            writer.close()
    top, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in top.split(b"\r\n", 1)[0]:
        raise OSError(f"{address}{path} answers {top[9:12].decode('latin-1') or 'nothing'}")
    if b"transfer-encoding: chunked" in top.lower():
        body = _unchunked(body)
    return body[:_LONGEST].decode("utf-8", "replace")


def _unchunked(data: bytes) -> bytes:
    parts = []
    while data:
        line, _, data = data.partition(b"\r\n")
        size = int(line.partition(b";")[0] or b"0", 16)
        if not size:
            break
        parts.append(data[:size])
        data = data[size + 2 :]
    return b"".join(parts)


def nodes_of(text: str) -> dict[str, NodeSample]:
    """The nodes on a router's page."""
    found: dict[str, dict[str, float]] = {}
    for what, node, value in _NODE.findall(text):
        found.setdefault(node, {})[what] = float(value)
    return {
        node: NodeSample(
            v.get("headroom_tokens", 0.0), v.get("capacity_tokens", 0.0), v.get("running", 0.0), v.get("waiting", 0.0)
        )
        for node, v in sorted(found.items())
    }


def value(text: str, name: str) -> float:
    """The sum of the samples of that name; 0 when there is none."""
    return sum(float(number) for found, number in _ONE.findall(text) if found == name)


def ready_nodes(text: str) -> int:
    """Nodes that a router's page says are ready."""
    found = re.search(r'^laya_router_nodes\{state="ready"\} (\S+)$', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def histograms(text: str) -> dict[str, tuple[float, float]]:
    """Sum and count of every histogram of ours on a page, by its stage where it has one, over all other labels."""
    found: dict[str, list[float]] = {}
    for name, kind, labels, number in _HISTOGRAM.findall(text):
        if stage := _STAGE.search(labels):
            name += f", {stage[1]}"
        pair = found.setdefault(name, [0.0, 0.0])
        pair[kind == "count"] += float(number)
    return {name: (total, count) for name, (total, count) in found.items()}


class Watcher:
    """Looks every ``interval`` seconds from ``start`` to ``stop``."""

    def __init__(self, watched: Watched, interval: float) -> None:
        self._watched = watched
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._began = time.monotonic()
        self._last: dict[str, tuple[float, float]] = {}
        self.samples: list[Sample] = []
        self.failures = 0
        """Looks at a page that could not be had."""

    def start(self) -> None:
        """Begin to look."""
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="bench-watch")

    async def stop(self) -> None:
        """No more looks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def now(self) -> float:
        """Seconds since ``start``."""
        return time.monotonic() - self._began

    async def _run(self) -> None:
        while True:
            self.samples.append(await self.look())
            if len(self.samples) > _MOST:
                del self.samples[::2]
                self._interval *= 2
            await asyncio.sleep(self._interval)

    async def look(self) -> Sample:
        """One look."""
        sample = Sample(round(self.now, 3))
        for name, pid in self._watched.pids.items():
            # The cluster's processes may be below the bench's own.
            every = [pid] if pid == os.getpid() else family(pid)
            self._process(sample, name, cpu_seconds(every), float(sum(map(rss_bytes, every))))
        if self._watched.admin:
            try:
                text = await page(self._watched.admin, token=self._watched.token)
            except (OSError, ValueError):
                self.failures += 1
            else:
                sample.nodes = nodes_of(text)
                sample.queue = value(text, "laya_router_queue_depth")
                if "router" not in self._watched.pids:
                    cpu, rss = (value(text, name) for name in _ROUTER)
                    self._process(sample, "router", cpu, rss)
        for address in self._watched.node_pages if self._watched.node_processes else ():
            try:
                text = await page(address, token=self._watched.token)
            except (OSError, ValueError):
                self.failures += 1
            else:
                name = f"node {address}"
                self._process(sample, name, value(text, "process_cpu_seconds_total"),
                              value(text, "laya_node_resident_memory_bytes"))  # fmt: skip
        return sample

    def _process(self, sample: Sample, name: str, cpu: float, rss: float) -> None:
        now = time.monotonic()
        before, then = self._last.get(name, (cpu, now))
        self._last[name] = (cpu, now)
        percent = 100.0 * max(0.0, cpu - before) / (now - then) if now > then else 0.0
        sample.processes[name] = ProcessSample(round(percent, 1), rss)

    async def stages(self) -> dict[str, tuple[float, float]]:
        """Sums and counts of all histograms now, of the router and of the nodes whose pages are known."""
        found: dict[str, tuple[float, float]] = {}
        for address in filter(None, (self._watched.admin, *self._watched.node_pages)):
            try:
                text = await page(address, token=self._watched.token)
            except (OSError, ValueError):
                self.failures += 1
                continue
            for name, (total, count) in histograms(text).items():
                before = found.get(name, (0.0, 0.0))
                found[name] = (before[0] + total, before[1] + count)
        return found


def means(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Mean seconds of what the histograms counted in between."""
    out = {}
    for name, (total, count) in after.items():
        was, had = before.get(name, (0.0, 0.0))
        if count > had:
            out[name] = (total - was) / (count - had)
    return out


def split(
    before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]], seconds: Sequence[float]
) -> dict[str, float]:
    """Mean seconds in each stage of a request, of those that took their clients so long; empty where not known."""
    sums = {}
    for name, (total, count) in after.items():
        was, had = before.get(name, (0.0, 0.0))
        sums[name] = (total - was, count - had)
    found = averaged(sums, sum(seconds) / len(seconds)) if seconds else None
    return asdict(found) if found is not None else {}


def family(pid: int) -> list[int]:
    """A process and those below it."""
    found, todo = [pid], children(pid)
    while todo:
        one = todo.pop()
        found.append(one)
        todo += children(one)
    return found


def pids(named: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Names to processes, the bench itself among them."""
    return {**dict(named), "bench": os.getpid()}
