"""Routers of the simulation: one around the real dispatcher, and one around a policy to compare with.

Both send, lose and repeat requests alike. A request that a node refuses or takes down with it before the first token
goes elsewhere; each has ``PATIENCE`` seconds to find room, and then is refused.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping

from loadtest.sim.cluster import MODEL, SimNode
from loadtest.sim.events import Events
from loadtest.sim.jobs import Job, Prompts
from loadtest.sim.policies import Policy, View
from loadtest.sim.record import Record
from router_node.dispatch import Ask, Dispatcher, DispatchSettings, NodeSpec, Reservation, Ticket, Verdict
from shared.errors import LayaError
from shared.pb.laya.v1.node_pb2 import WatchResponse

HOP = 0.00025
"""Seconds from a router to a node, and back."""
PATIENCE = 10.0
"""Seconds to find a node with room, at every router; as ``router.timeout_ms``."""
ATTEMPTS = 3
"""Nodes tried before a request waits, or is refused, as in the relay."""
BACKOFF, BACKOFF_GROWTH, BACKOFF_MOST = 0.05, 1.5, 1.0
"""Seconds that a router without a queue lets pass between two tries; the published defaults of one such."""


class State:
    """What a router knows of a request that is under way."""

    __slots__ = ("ask", "began", "excluded", "node", "prefix", "reservation", "tries")

    def __init__(self, prefix: tuple[int, ...]) -> None:
        self.prefix = prefix
        self.node: SimNode | None = None
        self.began = -1.0
        self.excluded: set[str] = set()
        self.ask: Ask | None = None
        self.reservation: Reservation | None = None
        self.tries = 0


class Router(ABC):
    """What is common to both. ``watcher`` is the id that its dispatches begin with."""

    def __init__(
        self, events: Events, number: int, nodes: Mapping[str, SimNode], record: Record, prompts: Prompts
    ) -> None:
        self.watcher = f"r{number}-boot"
        self.events = events
        self.nodes = nodes
        self.record = record
        self.prompts = prompts
        self.flying: dict[str, dict[int, Job]] = {node_id: {} for node_id in nodes}

    @abstractmethod
    def arrive(self, job: Job) -> None:
        """A client's request."""

    @abstractmethod
    def report(self, node: SimNode, report: WatchResponse) -> None:
        """A node's report, after whatever delayed it."""

    @abstractmethod
    def link(self, node: SimNode, up: bool) -> None:
        """The connection to a node is up or down."""

    @abstractmethod
    def over(self, job: Job, state: State, cached: int) -> None:
        """A node has answered in full, ``cached`` tokens of the prompt from its cache."""

    @abstractmethod
    def again(self, job: Job, state: State, retry_after: float | None, refused: bool) -> None:
        """A node refused a request, or is gone before its first token."""

    def send(self, job: Job, state: State, node: SimNode, dispatch: str) -> None:
        """Put a request on its way."""
        job.attempt += 1
        state.node = node
        self.flying[node.id][job.number] = job
        self.events.at(self.events.now + HOP, node.accept, job, job.attempt, dispatch, self)

    def node_refused(self, job: Job, attempt: int, retry_after: float | None) -> None:
        """See ``Caller``."""
        self.record.node_refusals += 1
        self.events.at(self.events.now + HOP, self._refused, job, attempt, retry_after)

    def node_began(self, job: Job, attempt: int) -> None:
        """See ``Caller``."""
        state = _of(job)
        if state is not None and job.attempt == attempt:
            state.began = self.events.now + HOP

    def node_ended(self, job: Job, attempt: int, cached: int) -> None:
        """See ``Caller``."""
        self.events.at(self.events.now + HOP, self._ended, job, attempt, cached)

    def lost(self, node: SimNode) -> None:
        """The connection to a node broke: so did all that was there."""
        self.link(node, False)
        jobs, self.flying[node.id] = list(self.flying[node.id].values()), {}
        for job in jobs:
            state = _of(job)
            if state is None:
                continue
            job.attempt += 1  # whatever may still come from there is void
            if state.began >= 0.0:
                if state.reservation is not None:
                    state.reservation.end()
                job.state = None
                self.record.lost(job)
            else:
                self.again(job, state, None, False)

    def _refused(self, job: Job, attempt: int, retry_after: float | None) -> None:
        state = _of(job)
        if state is None or job.attempt != attempt:
            return
        self._landed(job, state)
        self.again(job, state, retry_after, True)

    def _ended(self, job: Job, attempt: int, cached: int) -> None:
        state = _of(job)
        if state is None or job.attempt != attempt:
            return
        self._landed(job, state)
        job.state = None
        self.over(job, state, cached)
        self.record.served(job, state.began, self.events.now, cached)

    def _landed(self, job: Job, state: State) -> None:
        if state.node is not None:
            self.flying[state.node.id].pop(job.number, None)

    def refuse(self, job: Job, reason: str) -> None:
        """The client is told no."""
        job.state = None
        self.record.refused(job, reason)


class LayaRouter(Router):
    """The real dispatcher, driven as the relay and the discovery drive it."""

    def __init__(
        self,
        events: Events,
        number: int,
        nodes: Mapping[str, SimNode],
        record: Record,
        prompts: Prompts,
        seed: int,
        settings: DispatchSettings,
    ) -> None:
        super().__init__(events, number, nodes, record, prompts)
        self._wakes = math.inf
        rng = random.Random(seed * 1009 + number)
        self.dispatcher = Dispatcher(self.watcher, settings, events, rng=rng, wake=self._wake)
        for i, node in enumerate(nodes.values()):
            self.dispatcher.add_node(node.id, f"127.0.0.1:{10_000 + i}", spec_of(node))
            self.dispatcher.set_link(node.id, True)
            self.dispatcher.on_watch_reset(node.id)

    def arrive(self, job: Job) -> None:
        job.state = state = State(self.prompts.hashes(job))
        ask = Ask(
            MODEL,
            session=job.session,
            prompt_bytes=self.prompts.bytes_of(job),
            max_new_tokens=job.asked,
            n=1,
            prefix=state.prefix,
            arrived=job.arrived,
        )
        state.ask = ask
        self._submit(job, state, ask)

    def report(self, node: SimNode, report: WatchResponse) -> None:
        if self.dispatcher.on_report(node.id, report) in (Verdict.GAP, Verdict.WAITING_FULL):
            # A report was lost: a new watch tells everything again.
            self.dispatcher.on_watch_reset(node.id)
            self.events.at(self.events.now + HOP, node.watch, self.watcher)

    def link(self, node: SimNode, up: bool) -> None:
        if up:
            self.dispatcher.add_node(node.id, self.dispatcher.nodes()[0].address, spec_of(node))
        self.dispatcher.set_link(node.id, up)
        self.dispatcher.on_watch_reset(node.id)

    def over(self, job: Job, state: State, cached: int) -> None:
        reservation = state.reservation
        if reservation is not None:
            self.dispatcher.observe(reservation, job.prompt, cached)
            reservation.end()

    def again(self, job: Job, state: State, retry_after: float | None, refused: bool) -> None:
        old, ask = state.reservation, state.ask
        if old is None or ask is None:
            return
        if refused:
            self.dispatcher.on_refused(old, retry_after)
        if state.tries < ATTEMPTS:
            state.excluded.add(old.node.id)
            new = self.dispatcher.retry(old, state.excluded)
            if new is not None:
                self._granted(job, state, new)
                return
            if refused:
                self._submit(job, state, ask)
                return
        old.end()
        self.refuse(job, "NODES_REFUSED" if refused else "NODE_LOST")

    def _submit(self, job: Job, state: State, ask: Ask) -> None:
        try:
            got = self.dispatcher.submit(
                ask, lambda r: self._granted(job, state, r), lambda error: self.refuse(job, error.reason)
            )
        except LayaError as error:
            self.refuse(job, error.reason)
            return
        if isinstance(got, Ticket):
            self.record.queued += 1
        else:
            self._granted(job, state, got)

    def _granted(self, job: Job, state: State, reservation: Reservation) -> None:
        state.reservation = reservation
        state.tries += 1
        self.send(job, state, self.nodes[reservation.node.id], reservation.id.decode())

    def _wake(self, at: float) -> None:
        if at < self._wakes:
            self._wakes = at
            self.events.at(at, self._expire, at)

    def _expire(self, at: float) -> None:
        if at != self._wakes:
            return
        self._wakes = math.inf
        again = self.dispatcher.expire(self.events.now)
        if again is not None:
            self._wake(again)


class PlainRouter(Router):
    """A router around a policy to compare with. It has no queue: what nodes refuse is tried again after a pause."""

    def __init__(
        self,
        events: Events,
        number: int,
        nodes: Mapping[str, SimNode],
        record: Record,
        prompts: Prompts,
        policy: Policy,
    ) -> None:
        super().__init__(events, number, nodes, record, prompts)
        self._policy = policy
        self._views = {node.id: View(node.id) for node in nodes.values()}
        self._dispatches = 0
        policy.begin(list(self._views.values()))

    def arrive(self, job: Job) -> None:
        hashes = self.prompts.hashes(job) if self._policy.wants_prefix else ()
        job.state = state = State(hashes)
        self._try(job, state)

    def report(self, node: SimNode, report: WatchResponse) -> None:
        self._views[node.id].take_in(report)

    def link(self, node: SimNode, up: bool) -> None:
        view = self._views[node.id]
        view.up = up
        if not up:
            view.requests = view.since_report = 0
            self._policy.gone(view)

    def over(self, job: Job, state: State, cached: int) -> None:
        self._back(state)

    def again(self, job: Job, state: State, retry_after: float | None, refused: bool) -> None:
        if refused:
            self._back(state)
        if state.node is not None:
            state.excluded.add(state.node.id)
        state.tries += 1
        if state.tries < ATTEMPTS:
            self._try(job, state)
            return
        pause = min(BACKOFF_MOST, BACKOFF * BACKOFF_GROWTH ** (state.tries - ATTEMPTS))
        if self.events.now + pause > job.arrived + PATIENCE:
            self.refuse(job, "NODES_REFUSED")
        else:
            self.events.at(self.events.now + pause, self._afresh, job, state)

    def _afresh(self, job: Job, state: State) -> None:
        state.excluded.clear()
        self._try(job, state)

    def _try(self, job: Job, state: State) -> None:
        view = self._policy.choose(job, state.prefix, state.excluded)
        if view is None:
            state.node = None
            state.tries = max(state.tries, ATTEMPTS)
            self.again(job, state, None, False)
            return
        view.requests += 1
        view.since_report += job.prompt
        self._dispatches += 1
        self.send(job, state, self.nodes[view.id], f"{self.watcher}-{self._dispatches:x}")

    def _back(self, state: State) -> None:
        if state.node is not None:
            self._views[state.node.id].requests -= 1


def spec_of(node: SimNode) -> NodeSpec:
    """What a node says it is, as the discovery hands it over."""
    info = node.info
    return NodeSpec(
        MODEL,
        max_seq_len=info.max_seq_len,
        kv_capacity_tokens=info.kv_capacity_tokens,
        kv_block_tokens=info.kv_block_tokens,
        max_num_seqs=info.max_num_seqs,
        boot_id=node.state.boot_id,
    )


def _of(job: Job) -> State | None:
    state = job.state
    return state if isinstance(state, State) else None
