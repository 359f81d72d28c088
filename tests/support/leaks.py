"""Whether a process holds anything that its requests should have given back.

Asked at the end of every test that runs a router or a node: streams, reservations, holds, places in a queue, tasks and
file descriptors must all be back where they were before the first request. What is still on its way has a few seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ANYONE: Final = ssl._create_unverified_context()  # whose page it is does not matter here
REST_LIMIT: Final = 6.0  # seconds for what ends to have ended
_SLACK_TASKS: Final = 12  # of connections that are being opened, probes, a scrape
_SLACK_WORKER: Final = 16  # tasks of a worker of a router
_SLACK_FILES: Final = 16

_ROUTER_ZERO: Final = (
    "laya_router_requests_in_flight",
    "laya_router_queue_depth",
    "laya_router_reservations",
    "laya_router_node_reserved_tokens",
)
_NODE_ZERO: Final = (
    "laya_node_running_requests",
    "laya_node_waiting_requests",
    "laya_node_kv_held_tokens",
    "laya_node_holds",
    "laya_node_engine_running_sequences",
    "laya_node_engine_waiting_sequences",
)


@dataclass
class Baseline:
    """What a process had open when it said that it was ready."""

    pid: int
    page: str  # URL of its metrics
    kind: str  # "router" or "node"
    fetch: Callable[[str], str | None]
    files: int = 0
    tasks: float = 0.0


def baseline(pid: int, ready: dict[str, object], fetch: Callable[[str], str | None] | None = None) -> Baseline | None:
    """What a router or a node has now; None for a process whose metrics cannot be read in clear."""
    kind = "router" if "admin" in ready else "node"
    fetch = fetch or page
    base = Baseline(pid, f"http://{ready['admin' if kind == 'router' else 'address']}/metrics", kind, fetch)
    text = fetch(base.page)
    if text is None:
        return None
    base.files = _files(pid)
    base.tasks = value(text, f"laya_{kind}_tasks")
    return base


def left_behind(base: Baseline, limit: float = REST_LIMIT) -> list[str]:
    """What a process still holds after ``limit`` seconds without being asked for anything; empty when nothing."""
    deadline = time.monotonic() + limit
    while True:
        text = base.fetch(base.page)
        if text is None:
            return []  # it is ending, or does not let us look: others say whether that is right
        problems = _compare(base, text)
        if not problems or time.monotonic() >= deadline:
            return problems
        time.sleep(0.05)


def _compare(base: Baseline, text: str) -> list[str]:
    kind = base.kind
    found = {name: value(text, name) for name in (_ROUTER_ZERO if kind == "router" else _NODE_ZERO)}
    problems = [f"{name} is {count:g}" for name, count in found.items() if count]
    peers = links(text) * _processes(text) if kind == "router" else value(text, "laya_node_watches")
    connections = open_connections(text, kind)
    tasks = value(text, f"laya_{kind}_tasks")
    # Three for each peer: a link or a watch, and what serves or follows it. A node's rare services are grpc.aio's.
    allowed = base.tasks + 3 * peers + _SLACK_TASKS
    if kind == "router" and _processes(text) > 1:  # who may have had yet to say what they have
        allowed += value(text, "laya_router_workers") * _SLACK_WORKER
    if tasks > allowed:
        problems.append(f"{tasks:g} tasks, and {allowed:g} are explained")
    files = _files(base.pid)
    most = base.files + max(0.0, connections) + 2 * peers + _SLACK_FILES
    if files > most:
        problems.append(f"{files} open files, and {most:g} are explained")
    if kind == "router":
        streams = value(text, "laya_router_node_streams")
        if streams > 3 * max(1.0, peers):  # a watch, the node's health, a call that asks what it is
            problems.append(f"{streams:g} streams to {peers:g} nodes, and no request")
    return problems


def _processes(text: str) -> float:
    """Processes of a router that have links of their own: it alone, or its workers and their supervisor."""
    workers = value(text, "laya_router_workers")
    return 1.0 if workers <= 1 else workers + 1


def open_connections(text: str, kind: str) -> float:
    """Connections that the process says are open, to and from it."""
    if kind == "router":
        net = {event: value(text, "laya_router_net_total", event) for event in _NET}
        return net["connections_accepted"] + net["connections_dialled"] - net["connections_closed"]
    return value(text, "laya_node_connections_accepted_total") - value(text, "laya_node_connections_closed_total")


_NET: Final = ("connections_accepted", "connections_dialled", "connections_closed")


def links(text: str) -> float:
    """Nodes that a router knows, in whatever state."""
    return value(text, "laya_router_nodes")


def value(text: str, name: str, label: str = "") -> float:
    """Sum of the samples called ``name`` in an exposition, of those with a label's value where one is given."""
    total = 0.0
    for line in text.splitlines():
        if line.startswith(name) and line[len(name)] in " {" and (not label or f'"{label}"' in line):
            total += float(line.rpartition(" ")[2])
    return total


def _files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def page(url: str) -> str | None:
    """A page of a process, None when it cannot be read."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=ANYONE if url.startswith("https:") else None) as answer:
            return str(answer.read().decode())
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return None
