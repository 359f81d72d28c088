"""Ways to choose a node that are in use elsewhere, to compare with. Written anew from their published rules.

Each router has one of its own, with its own counts. They hear the same reports, as late, as the real dispatcher does;
what they make of them is what the rule says.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence

from loadtest.sim.jobs import Job
from shared.pb.laya.v1.node_pb2 import WatchResponse

FALLBACK_RATE = 2000.0
"""Prefill tokens a second where a node has not said."""
KV_WEIGHT = 0.15
"""Of k / (1 - k) in the published load formula: seconds."""
MATCH_LEAST = 0.3
"""Share of a prompt that must be known of a node for it to be chosen for its cache."""
GATE_ABSOLUTE, GATE_RELATIVE = 64, 1.5
"""The loads of the busiest and the idlest node must differ by so many requests, and by this factor, for the gate to
switch affinity off."""
TREE_LIMIT = 1 << 20


class View:
    """A node as a router sees it."""

    __slots__ = ("capacity", "headroom", "id", "queued", "rate", "requests", "running", "since_report", "up", "waiting")

    def __init__(self, node_id: str) -> None:
        self.id = node_id
        self.up = True
        self.requests = 0
        """Sent by this router and not over."""
        self.since_report = 0
        """Prompt tokens sent since its last report."""
        self.capacity = 1
        self.headroom = 1
        self.queued = 0
        self.running = 0
        self.waiting = 0
        self.rate = 0.0

    def take_in(self, report: WatchResponse) -> None:
        """The node has reported."""
        self.capacity, self.headroom = max(1, report.kv_capacity_tokens), report.headroom_tokens
        self.queued = report.queued_prefill_tokens
        self.running, self.waiting = report.running, report.waiting
        self.rate = report.prefill_tokens_per_second
        self.since_report = 0

    @property
    def used(self) -> float:
        """Share of KV in use, with what was sent since the report."""
        return min(0.9999, (self.capacity - self.headroom + self.since_report) / self.capacity)

    @property
    def seconds(self) -> float:
        """(queued + in flight) / throughput + 0.15 k / (1 - k), k as last reported: the published load."""
        k = min(0.9999, (self.capacity - self.headroom) / self.capacity)
        return (self.queued + self.since_report) / (self.rate or FALLBACK_RATE) + KV_WEIGHT * k / (1.0 - k)


class Policy:
    """Chooses among the nodes that are up; a subclass says by what."""

    wants_prefix = False

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.views: list[View] = []

    def begin(self, views: list[View]) -> None:
        """These are the nodes."""
        self.views = views

    def gone(self, view: View) -> None:
        """A node went down."""

    def choose(self, job: Job, prefix: Sequence[int], exclude: Container[str]) -> View | None:
        """A node for ``job``; None when none is left."""
        views = [view for view in self.views if view.up and view.id not in exclude]
        return self.pick(job, prefix, views) if views else None

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        """One of ``views``."""
        raise NotImplementedError

    def least(self, views: list[View], key: Callable[[View], float]) -> View:
        """The view of the least key; ties are broken by chance."""
        best, found = math.inf, []
        for view in views:
            value = key(view)
            if value < best:
                best, found = value, [view]
            elif value == best:
                found.append(view)
        return found[0] if len(found) == 1 else self.rng.choice(found)


class RoundRobin(Policy):
    """One after another."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._turn = rng.randrange(1 << 16)

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        self._turn += 1
        return views[self._turn % len(views)]


class Random(Policy):
    """Any."""

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        return self.rng.choice(views)


class LeastRequests(Policy):
    """Fewest of this router's own requests under way."""

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        return self.least(views, _requests)


class PowerOfTwo(Policy):
    """Of two drawn at random, the one with fewer of this router's own requests under way."""

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        return self.least(self.rng.sample(views, min(2, len(views))), _requests)


class PowerOfTwoLoad(Policy):
    """Of two drawn at random, the one of less load by the published formula."""

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        return self.least(self.rng.sample(views, min(2, len(views))), _seconds)


class LeastKv(Policy):
    """Least KV in use."""

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        return self.least(views, _used)


class LeastLoad(Policy):
    """Least load by the published formula."""

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        return self.least(views, _seconds)


class CacheAware(Policy):
    """The node that knows most of the prompt, if that is enough of it; else, or when the gate is open, the least busy.

    The gate looks at the whole fleet: one busy node switches affinity off for everybody.
    """

    wants_prefix = True

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._known: OrderedDict[int, dict[str, None]] = OrderedDict()

    def gone(self, view: View) -> None:
        for holders in self._known.values():
            holders.pop(view.id, None)

    def pick(self, job: Job, prefix: Sequence[int], views: list[View]) -> View:
        loads = [view.requests for view in views]
        high, low = max(loads), min(loads)
        chosen = None
        if not (high - low > GATE_ABSOLUTE and high > GATE_RELATIVE * low):
            chosen = self._match(prefix, views)
        if chosen is None:
            chosen = self.least(views, _requests)
        self._learn(prefix, chosen)
        return chosen

    def _match(self, prefix: Sequence[int], views: list[View]) -> View | None:
        by_id = {view.id: view for view in views}
        for depth in range(len(prefix), 0, -1):
            if depth < MATCH_LEAST * len(prefix):
                break
            holders = [by_id[name] for name in self._known.get(prefix[depth - 1], ()) if name in by_id]
            if holders:
                return self.least(holders, _requests)
        return None

    def _learn(self, prefix: Sequence[int], view: View) -> None:
        known = self._known
        for key in prefix:
            holders = known.get(key)
            if holders is None:
                known[key] = {view.id: None}
            else:
                holders[view.id] = None
                known.move_to_end(key)
        while len(known) > TREE_LIMIT:
            known.popitem(last=False)


def _requests(view: View) -> float:
    return view.requests


def _used(view: View) -> float:
    return view.used


def _seconds(view: View) -> float:
    return view.seconds


POLICIES: dict[str, type[Policy]] = {
    "round-robin": RoundRobin,
    "random": Random,
    "least-requests": LeastRequests,
    "power-of-two": PowerOfTwo,
    "power-of-two-load": PowerOfTwoLoad,
    "least-kv": LeastKv,
    "cache-aware": CacheAware,
    "least-load": LeastLoad,
}
"""By the names that the command line knows; ``laya`` is the real dispatcher."""
LAYA = "laya"
