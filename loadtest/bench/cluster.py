"""The cluster that a benchmark starts for itself: nodes, and a router before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from loadtest.bench.plan import Nodes, Plan
from loadtest.bench.watch import Watched, page, pids, ready_nodes
from loadtest.rig import Rig, RigError, free_port

_VLLM_START = 240.0  # seconds for a model to load
_OWN_ENV = {"LAYA_INFERENCE__RAMP_SECONDS": "0", "LAYA_INFERENCE__HEARTBEAT": "1"}


@dataclass(slots=True)
class Node:
    """One node that was started, and how to start it again at the same address."""

    name: str
    address: str
    pid: int
    argv: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def sim_env(nodes: Nodes, slow: bool) -> dict[str, str]:
    """The settings of a simulated node."""
    times = nodes.slow_times if slow else 1.0
    return _OWN_ENV | {
        "LAYA_INFERENCE__SIM__KV_TOKENS": str(nodes.kv_tokens),
        "LAYA_INFERENCE__SIM__PREFILL_TOKENS_PER_SECOND": str(nodes.prefill_tokens_per_second / times),
        "LAYA_INFERENCE__SIM__DECODE_BASE_MS": str(nodes.decode_base_ms * times),
        "LAYA_INFERENCE__SIM__DECODE_PER_SEQUENCE_MS": str(nodes.decode_per_sequence_ms * times),
    }


def start_nodes(rig: Rig, plan: Plan, more: Mapping[str, str] | None = None) -> list[Node]:
    """The nodes of a plan, the slow ones last; ``more`` is put over their environment. Raises RigError."""
    nodes = plan.nodes
    if nodes.engine == "canned":
        length = str(plan.works[0].output)
        made = [rig.python("loadtest.fake_node", "--node-id", f"node-{i + 1}", "--messages", length)
                for i in range(nodes.count)]  # fmt: skip
        return [Node(f"node-{i + 1}", address, pid) for i, (address, pid, _) in enumerate(made)]
    if nodes.engine == "vllm":
        return start_vllm(rig, nodes.count, more)
    started = []
    for i in range(nodes.count):
        argv = ["--engine", "sim", "--port", str(free_port()), "--node-id", f"node-{i + 1}"]
        env = sim_env(nodes, i >= nodes.count - nodes.slow) | dict(more or {})
        address, pid, _ = rig.python("inference_node.main", *argv, env=env)
        started.append(Node(f"node-{i + 1}", address, pid, argv, env))
    return started


def start_vllm(rig: Rig, count: int, more: Mapping[str, str] | None = None) -> list[Node]:
    """Nodes with the demo model, which share the cores (or the GPUs) out. Raises RigError."""
    from inference_node.quantize import demo
    from shared.cli import hardware
    from shared.cpus import cores

    model = str(demo.prepare())
    gpus = hardware.gpus()
    if gpus:
        shares = [{"CUDA_VISIBLE_DEVICES": share} for share in hardware.share_gpus(gpus, count)]
    else:
        shares = [{"LAYA_INFERENCE__CPU_THREADS": s} for s in hardware.share_cores(cores(), count)]
    started = []
    for i, share in enumerate(shares):
        argv = ["--engine", "vllm", "--model", model, "--port", "0", "--node-id", f"node-{i + 1}"]
        env = {"LAYA_INFERENCE__RAMP_SECONDS": "0", **share, **(more or {})}
        address, pid, _ = rig.python("inference_node.main", *argv, env=env, limit=_VLLM_START)
        started.append(Node(f"node-{i + 1}", address, pid))
    return started


@dataclass(slots=True)
class Own:
    """A running cluster of ours."""

    rig: Rig
    address: str
    watched: Watched
    nodes: list[Node]

    async def kill_one(self, nodes: Nodes) -> None:
        """At its time of a round, one node dies and comes back; for as long as this runs."""
        await asyncio.sleep(nodes.kill)
        victim = self.nodes[0]
        self.rig.kill(victim.pid)
        try:
            await asyncio.sleep(nodes.back)
        finally:
            victim.pid = self.rig.again("inference_node.main", *victim.argv, env=victim.env)
            self.watched.pids[victim.name] = victim.pid

    async def settle(self, limit: float = 20.0) -> None:
        """Until the router has every node again, or ``limit`` seconds have passed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit
        while loop.time() < until:
            with contextlib.suppress(OSError):
                if ready_nodes(await page(self.watched.admin)) >= len(self.nodes):
                    return
            await asyncio.sleep(0.1)


@contextlib.contextmanager
def own(plan: Plan) -> Iterator[Own]:
    """The plan's cluster on loopback, ready; everything ends with the context. Raises RigError."""
    with Rig() as rig:
        nodes = start_nodes(rig, plan)
        try:
            address, pid, admin = rig.router([node.address for node in nodes])
        except OSError as error:
            raise RigError(f"the router does not start: {error}") from None
        named = [("router", pid), *((node.name, node.pid) for node in nodes)]
        yield Own(rig, address, Watched(admin, pids(named), _pages(plan, nodes), node_processes=False), nodes)


def _pages(plan: Plan, nodes: list[Node]) -> list[str]:
    """Nodes whose own histograms are read; their CPU and memory are known by their pids."""
    return [] if plan.nodes.engine == "canned" else [node.address for node in nodes]
