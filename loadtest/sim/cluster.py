"""A simulated node: the real admission, ledger and reports around an engine that only keeps time.

What is of the product here: ``open_admission`` (ledger, lanes, queue), ``Reporter`` (watches, budgets, counted
dispatches) and ``NodeState``. A plain node stands for a bare engine instead: it takes whatever comes, queues it in the
engine, preempts when memory runs out, and reports the engine's gauges.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inference_node.admission import Admitted, Need
from inference_node.engines.sim import SimEngine
from inference_node.engines.sim_scheduler import Costs
from inference_node.keeper import open_admission
from inference_node.limits import long_prefill_threshold
from inference_node.report import HEARTBEAT, SHORTEST_GAP, Load, Reporter, Watch
from inference_node.state import NodeState, Serving
from loadtest.sim.engine import LeapEngine, Run
from loadtest.sim.events import Events
from loadtest.sim.jobs import Job
from shared.config.schema import Config, InferenceConfig, SimConfig
from shared.errors import LayaError
from shared.ids import boot_id
from shared.pb.laya.v1.node_pb2 import WatchResponse

MODEL = "sim"
RAMP_AFTER_RESTART = 3.0

_log = logging.getLogger("loadtest.sim")


@dataclass(frozen=True, slots=True)
class Shape:
    """What each node is. Defaults are those of the ``sim`` engine."""

    kv_tokens: int = 524_288
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_seq_len: int = 0  # 0: what the engine takes by itself
    plain: bool = False

    def config(self, ramp_seconds: float) -> Config:
        """As a node's configuration."""
        sim = SimConfig(kv_tokens=self.kv_tokens, block_tokens=self.block_tokens)
        most = min(self.kv_tokens, 131_072)
        return Config(
            inference=InferenceConfig(
                engine="sim",
                model=MODEL,
                max_seq_len=self.max_seq_len or most,
                max_num_seqs=self.max_num_seqs,
                ramp_seconds=ramp_seconds,
                sim=sim,
            )
        )


class Caller(Protocol):
    """Who sent a request to a node; called at the moment it happens there, so the caller adds the way back."""

    def node_refused(self, job: Job, attempt: int, retry_after: float | None) -> None: ...
    def node_began(self, job: Job, attempt: int) -> None: ...
    def node_ended(self, job: Job, attempt: int, cached: int) -> None: ...


class SimReporter(Reporter):
    """The node's reporter, woken by virtual time."""

    def __init__(self, state: NodeState, clock: Callable[[], float], poked: Callable[[], None]) -> None:
        self._poked = poked
        self.plain: LeapEngine | None = None
        super().__init__(state, clock)

    def poke(self) -> None:
        self._poked()

    def load(self) -> Load:
        load = super().load()
        engine = self.plain
        if engine is None:
            return load
        headroom = int(load.capacity * (1.0 - engine.usage))
        queued = engine.pending_prefill
        return Load(load.capacity, headroom, engine.running, engine.waiting, queued, load.ready,
                    most_running=load.most_running, most_prefill=load.most_prefill)  # fmt: skip


class SimNode:
    """One node. ``deliver(watcher, report)`` is called for each report that goes out."""

    def __init__(self, events: Events, node_id: str, shape: Shape, segment_tokens: int) -> None:
        self.id = node_id
        self.shape = shape
        self.speed = 1.0
        self.alive = True
        self.reports = 0
        self.preemptions_before = 0
        self.deliver: Callable[[SimNode, str, WatchResponse], None] = lambda *_: None
        self._events = events
        self._segment = segment_tokens
        self._next = math.inf
        self._last = -math.inf
        self._watches: dict[str, Watch] = {}
        self._flights: dict[str, tuple[Run, Admitted | None]] = {}
        self._boot(0.0)

    def _boot(self, ramp: float) -> None:
        events, shape = self._events, self.shape
        config = shape.config(ramp)
        found = SimEngine(config.inference)
        info = found.info
        sim = config.inference.sim
        costs = Costs(
            sim.prefill_tokens_per_second,
            sim.decode_base_ms / 1e3,
            sim.decode_per_sequence_ms / 1e3,
            info.max_prefill_tokens,
            info.max_num_seqs,
            long_prefill_threshold(config.inference.long_prompt_tokens, info.max_prefill_tokens),
        )
        self.info = info
        self.engine = engine = LeapEngine(events, costs, info.kv_blocks, info.kv_block_tokens, self._segment)
        engine.speed = self.speed
        self.state = NodeState(config, self.id)
        self.state.boot_id = boot_id()
        self.reporter = reporter = SimReporter(self.state, events, self._poke)
        rates = reporter.rates
        self.admission = admission = open_admission(
            config.inference, found, info, lambda: rates.prefill, events, _log, lambda: rates.prefix_hit_rate
        )
        found.stats = engine.snapshot  # type: ignore[method-assign]
        if shape.plain:
            reporter.plain = engine
        admission.on_change = reporter.poke
        self.state.start_serving(Serving(found, info, admission))
        self._warm_up()

    def _warm_up(self) -> None:
        at = self.admission.ramp.next_step(self._events.now)
        if at is not None and self.alive:
            self._events.at(at, self._ramped, self.admission)

    def _ramped(self, admission: object) -> None:
        if admission is self.admission:
            self.admission.expire(self._events.now)
            self._warm_up()

    @property
    def held(self) -> float:
        """Share of KV capacity promised to requests, 0 to 1; of a plain node, what the engine uses."""
        if self.shape.plain:
            return self.engine.usage
        ledger = self.admission.ledger
        return ledger.held_blocks / ledger.capacity_blocks

    @property
    def preemptions(self) -> int:
        """Sequences that lost their blocks, before a restart too."""
        return self.preemptions_before + self.engine.preemptions

    # Requests.

    def accept(self, job: Job, attempt: int, dispatch: str, caller: Caller) -> None:
        """A request arrives."""
        if not self.alive:
            return  # its sender learns from the connection
        run = Run(
            job.prompt,
            job.output,
            job.blocks,
            lambda: self._first(dispatch, job, attempt, caller),
            lambda: self._done(dispatch, job, attempt, caller),
        )
        if self.shape.plain:
            self.reporter.count(dispatch)
            self._flights[dispatch] = (run, None)
            self.engine.add(run)
            self._poke()
            return
        admission = self.admission

        def settled(outcome: Admitted | LayaError) -> None:
            if isinstance(outcome, LayaError):
                self._leave(dispatch)
                caller.node_refused(job, attempt, outcome.retry_after)
            else:
                self._admitted(dispatch, run, outcome)

        try:
            got = admission.submit(Need((job.prompt,), job.asked), 0, None, settled)
        except LayaError as error:
            caller.node_refused(job, attempt, error.retry_after)
            return
        self.reporter.count(dispatch)
        self._poke()
        if isinstance(got, Admitted):
            self._admitted(dispatch, run, got)
        else:
            self._events.at(got.expires, self._expire, admission)

    def _admitted(self, dispatch: str, run: Run, admitted: Admitted) -> None:
        self._flights[dispatch] = (run, admitted)
        self.engine.add(run)

    def _expire(self, admission: object) -> None:
        if admission is self.admission and self.alive:
            self.admission.expire(self._events.now)

    def _first(self, dispatch: str, job: Job, attempt: int, caller: Caller) -> None:
        admitted = self._flights[dispatch][1]
        if admitted is not None:
            admitted.prefill_done()
        caller.node_began(job, attempt)

    def _done(self, dispatch: str, job: Job, attempt: int, caller: Caller) -> None:
        run, admitted = self._flights.pop(dispatch)
        if admitted is not None:
            admitted.release()
        self._leave(dispatch)
        caller.node_ended(job, attempt, run.cached)

    def _leave(self, dispatch: str) -> None:
        self.reporter.end(dispatch)
        self._poke()

    # Reports.

    def watch(self, watcher: str) -> None:
        """A router opens its watch, or opens it anew."""
        if not self.alive:
            return
        old = self._watches.pop(watcher, None)
        if old is not None:
            self.reporter.close(old)
        self._watches[watcher] = self.reporter.open(watcher)
        self._send_due()

    def _poke(self) -> None:
        self._arm(max(self._events.now, self._last + SHORTEST_GAP))

    def _arm(self, when: float) -> None:
        if when < self._next:
            self._next = when
            self._events.at(when, self._tick, when)

    def _tick(self, when: float) -> None:
        if when != self._next or not self.alive:
            return
        now = self._events.now
        self._next, self._last = math.inf, now
        self.reporter.tick()
        self._send_due()
        oldest = min((watch.sent_at for watch in self._watches.values()), default=now)
        self._arm(max(now + SHORTEST_GAP, oldest + HEARTBEAT))

    def _send_due(self) -> None:
        for watcher, watch in self._watches.items():
            if watch.due:
                self.reports += 1
                self.deliver(self, watcher, _next_of(watch))

    # Trouble.

    def slow_down(self, factor: float) -> None:
        """It runs at ``factor`` of its speed from its next step on."""
        self.speed = self.engine.speed = factor

    def die(self) -> None:
        """The process ends, with all that ran in it; its routers' connections break."""
        self.alive = False
        self.engine.kill()
        self.preemptions_before += self.engine.preemptions
        self.engine.preemptions = 0
        self._flights.clear()
        self._watches.clear()
        self._next = math.inf

    def restart(self) -> None:
        """A new process takes its place: another boot, an empty cache, and a ramp."""
        self.alive = True
        self._boot(RAMP_AFTER_RESTART)


def _next_of(watch: Watch) -> WatchResponse:
    """The report that is due. ``Watch.next`` does not wait when one is."""
    try:
        watch.next().send(None)
    except StopIteration as done:
        report: WatchResponse = done.value
        return report
    raise RuntimeError("a report that was due had to be waited for")
