"""One run: a trace, a cluster, a policy."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from loadtest.sim.cluster import Shape, SimNode
from loadtest.sim.events import Events
from loadtest.sim.jobs import Job, Prompts, Trace
from loadtest.sim.policies import LAYA, POLICIES
from loadtest.sim.record import Figures, Record, Slo
from loadtest.sim.routers import HOP, LayaRouter, PlainRouter, Router
from router_node.dispatch import DispatchSettings
from shared.pb.laya.v1.node_pb2 import WatchResponse

LOOK_EVERY = 0.25
"""Seconds between two looks at how full the nodes are."""
DETECTION = 0.2
"""Seconds until a router notices that a connection broke."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster and what befalls it."""

    nodes: int = 16
    routers: int = 1
    shape: Shape = field(default_factory=Shape)
    report_delay: float = 0.001
    """Seconds from a node to a router, for reports."""
    report_loss: float = 0.0
    """Share of reports that never arrive."""
    slow: int = 0
    """Nodes that run at ``slow_factor`` from a quarter of the trace on, to three quarters."""
    slow_factor: float = 0.3
    dying: int = 0
    """Nodes that die in the course of the trace, each to be restarted after ``dead_seconds``."""
    dead_seconds: float = 10.0
    warm_up: float = 0.05
    """Share of the requests whose times are not counted."""
    slo: Slo = field(default_factory=Slo)
    max_wall: float = 1800.0
    """The run is given up after so many seconds of real time."""


class GaveUp(RuntimeError):
    """A run took longer than it may."""


def run(trace: Trace, setting: Setting, policy: str, seed: int) -> Figures:
    """Simulate; the same arguments give the same figures. Raises GaveUp."""
    events = Events(1.0)  # the dispatcher takes an arrival at 0 for one that is not known
    began = time.monotonic()
    world = World(events, trace, setting, policy, seed)
    finished = events.run(setting.max_wall)
    if not finished:
        record = world.record
        raise GaveUp(
            f"{policy} on {trace.name}: only {record.settled} of {trace.count} requests were done after "
            f"{setting.max_wall:.0f} s; take fewer requests or raise --max-seconds"
        )
    return world.record.figures(world.nodes, events.done, time.monotonic() - began)


class World:
    """All of one run: nodes, routers, what befalls them, and the record. ``events.run()`` sets it going."""

    def __init__(self, events: Events, trace: Trace, setting: Setting, policy: str, seed: int) -> None:
        self.events = events
        self.trace = trace
        self.setting = setting
        self.record = Record(trace.count, int(trace.count * setting.warm_up), setting.slo)
        self.nodes = [SimNode(events, f"node-{i}", setting.shape, trace.block_tokens) for i in range(setting.nodes)]
        self._rng = random.Random(seed * 7919 + 1)
        self._jobs = iter(trace.jobs)
        self._start = events.now
        prompts = Prompts(trace.block_tokens)
        by_id = {node.id: node for node in self.nodes}
        self.routers: dict[str, Router] = {}
        for number in range(setting.routers):
            router: Router
            if policy == LAYA:
                settings = DispatchSettings()
                router = LayaRouter(events, number, by_id, self.record, prompts, seed, settings)
            else:
                chooser = POLICIES[policy](random.Random(seed * 31 + number))
                router = PlainRouter(events, number, by_id, self.record, prompts, chooser)
            self.routers[router.watcher] = router
        self._list = list(self.routers.values())
        for node in self.nodes:
            node.deliver = self._deliver
            for watcher in self.routers:
                node.watch(watcher)
        self._trouble()
        events.at(self._start + LOOK_EVERY, self._look)
        # Arrivals begin once every router has heard from every node.
        self._start += setting.report_delay + 2 * HOP
        self._next()

    def _next(self) -> None:
        job = next(self._jobs, None)
        if job is not None:
            job.arrived += self._start
            self.events.at(job.arrived, self._arrive, job)

    def _arrive(self, job: Job) -> None:
        self._next()
        routers = self._list
        (routers[0] if len(routers) == 1 else self._rng.choice(routers)).arrive(job)

    def _deliver(self, node: SimNode, watcher: str, report: WatchResponse) -> None:
        self.record.held(node.held)
        setting = self.setting
        if setting.report_loss and self._rng.random() < setting.report_loss:
            return
        self.events.at(self.events.now + setting.report_delay, self._report, watcher, node, report)

    def _report(self, watcher: str, node: SimNode, report: WatchResponse) -> None:
        if node.alive and report.boot_id == node.state.boot_id:
            self.routers[watcher].report(node, report)

    def _look(self) -> None:
        self.record.look(self.nodes)
        if self.record.settled >= self.trace.count:
            self.events.stop()
        else:
            self.events.at(self.events.now + LOOK_EVERY, self._look)

    # Trouble.

    def _trouble(self) -> None:
        setting, at = self.setting, self.events.at
        span = self.trace.seconds
        victims = self._rng.sample(self.nodes, min(len(self.nodes), setting.slow + setting.dying))
        for node in victims[: setting.slow]:
            at(self._start + 0.25 * span, node.slow_down, setting.slow_factor)
            at(self._start + 0.75 * span, node.slow_down, 1.0)
        dying = victims[setting.slow :]
        for i, node in enumerate(dying):
            at(self._start + span * (0.2 + 0.6 * i / len(dying)), self._die, node)

    def _die(self, node: SimNode) -> None:
        node.die()
        now = self.events.now
        for router in self._list:
            self.events.at(now + DETECTION, router.lost, node)
        self.events.at(now + self.setting.dead_seconds, self._restart, node)

    def _restart(self, node: SimNode) -> None:
        node.restart()
        for router in self._list:
            router.link(node, True)
            node.watch(router.watcher)
