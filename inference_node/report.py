"""What the node tells every router about its load, and which dispatches it has counted.

Each router worker holds one watch. A dispatch is counted once its request is in the ledger or in the wait queue, so
that the numbers of the very report that lists it include it; a report lists a watcher's newly counted ids, the first
one of a watch all that are alive. Reports go out on a change of over 2 %, at most 20 a second to a watcher, at least
one a second. With them go the true counts of dispatches, and what the engine's cache has lost. A node sends no more
than 200 a second in all: with many watchers each hears from it less often, whoever has waited longest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from inference_node.engines.base import EngineStats
from inference_node.rates import Ratio
from inference_node.state import NodeState
from shared.errors import LayaError, exhausted, invalid
from shared.pb.laya.v1.node_pb2 import DispatchUsage, Eviction, WatchResponse

CHANGE = 0.02
SHORTEST_GAP = 0.05  # seconds between two reports to one watcher
# Reports over all watchers: so many a second in the long run, and so many at once. Their sum is the bound, 200.
RATE, BURST = 180.0, 20.0
HEARTBEAT = 0.9  # a report a second at least, with room for a late timer; less often where the budget is less
MAX_WATCHES = 512  # at the budget each of them still hears from the node within three seconds
MAX_WATCHER_ID = 128
MAX_TOLD = 512  # true counts, and evictions, that wait for a watch's next report; more are left out
BUSY_WINDOW = 10.0  # busy seconds that rates look back on
PREFIX_WINDOW = 50_000.0  # prompt tokens that the hit rate looks back on


@dataclass(frozen=True, slots=True)
class Load:
    """The numbers of one report."""

    capacity: int = 0
    headroom: int = 0
    running: int = 0
    waiting: int = 0
    queued_prefill: int = 0
    ready: bool = False
    draining: bool = False
    closed_reason: str = ""
    most_running: int = 1  # what the changes of running and waiting are measured against
    most_prefill: int = 1

    def differs(self, other: Load) -> bool:
        """Whether a router should know at once: a state, or a number by over 2 % of its scale."""
        if (self.ready, self.draining, self.closed_reason) != (other.ready, other.draining, other.closed_reason):
            return True
        return (
            abs(self.headroom - other.headroom) > CHANGE * max(self.capacity, 1)
            or self.capacity != other.capacity
            or abs(self.running - other.running) > CHANGE * self.most_running
            or abs(self.waiting - other.waiting) > CHANGE * self.most_running
            or abs(self.queued_prefill - other.queued_prefill) > CHANGE * self.most_prefill
        )


class EngineRates:
    """Recent rates from the engine's counters."""

    __slots__ = ("_decode", "_last", "_prefill", "_prefix")

    def __init__(self) -> None:
        self._prefill = Ratio(BUSY_WINDOW)
        self._decode = Ratio(BUSY_WINDOW)
        self._prefix = Ratio(PREFIX_WINDOW)
        self._last = EngineStats()

    def sample(self, stats: EngineStats) -> None:
        """Take in the counters as they are now."""
        last = self._last
        self._prefill.add(stats.prompt_tokens - last.prompt_tokens, stats.prefill_seconds - last.prefill_seconds)
        self._decode.add(stats.generation_tokens - last.generation_tokens, stats.decode_seconds - last.decode_seconds)
        self._prefix.add(stats.prefix_hits - last.prefix_hits, stats.prefix_queries - last.prefix_queries)
        last.prompt_tokens, last.prefill_seconds = stats.prompt_tokens, stats.prefill_seconds
        last.generation_tokens, last.decode_seconds = stats.generation_tokens, stats.decode_seconds
        last.prefix_hits, last.prefix_queries = stats.prefix_hits, stats.prefix_queries

    @property
    def prefill(self) -> float:
        """Prompt tokens a second of busy time; 0 while unknown."""
        return self._prefill.value

    @property
    def decode(self) -> float:
        """New tokens a second over all sequences; 0 while unknown."""
        return self._decode.value

    @property
    def prefix_hit_rate(self) -> float:
        """Share of recent prompt tokens found in the prefix cache, 0 to 1."""
        return min(1.0, self._prefix.value)


class Budget:
    """Reports that may go out now: a bucket that fills at ``RATE`` and holds ``BURST``."""

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        self._left = BURST
        self._at = now

    def take(self, now: float) -> bool:
        """Spend one, if there is one."""
        self._left = min(BURST, self._left + (now - self._at) * RATE)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Watch:
    """One router worker's stream of reports."""

    __slots__ = (
        "_due",
        "_evicted",
        "_fresh",
        "_full",
        "_reporter",
        "_sequence",
        "_used",
        "sent",
        "sent_at",
        "watcher",
    )

    def __init__(self, reporter: Reporter, watcher: str) -> None:
        self._reporter = reporter
        self.watcher = watcher
        self.sent: Load | None = None
        self.sent_at = 0.0
        self._sequence = 0
        self._fresh: dict[str, None] = {}  # counted, not yet reported
        self._used: list[DispatchUsage] = []
        self._evicted: dict[str, int] = {}  # by dispatch: tokens kept
        self._full = True
        self._due = asyncio.Event()

    async def next(self) -> WatchResponse:
        """The next report, once it is due; its numbers and ids are of one moment."""
        await self._due.wait()
        self._due.clear()
        reporter = self._reporter
        ids = reporter.live(self.watcher) if self._full else list(self._fresh)
        self._fresh.clear()
        load = reporter.load()
        message = reporter.message(load, self._sequence, ids, self._full)
        self._tell(message)
        self._full = False
        self._sequence += 1
        self.sent, self.sent_at = load, reporter.clock()
        return message

    @property
    def due(self) -> bool:
        """Whether a report may go out and has not yet."""
        return self._due.is_set()

    def wake(self) -> None:
        """A report is due."""
        self._due.set()

    def counted(self, dispatch: str) -> None:
        """A dispatch of this watcher's is in the numbers from now on."""
        self._fresh[dispatch] = None

    def used(self, dispatch: str, prompt_tokens: int, cached_tokens: int) -> None:
        """What one of this watcher's dispatches really was; goes with the next report, which it does not hasten."""
        if len(self._used) < MAX_TOLD:
            self._used.append(
                DispatchUsage(dispatch=dispatch, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
            )

    def evicted(self, dispatch: str, kept_tokens: int) -> None:
        """Of its prompt, only so many leading tokens are still cached; goes with the next report."""
        evicted = self._evicted
        if dispatch in evicted or len(evicted) < MAX_TOLD:
            evicted[dispatch] = min(kept_tokens, evicted.get(dispatch, kept_tokens))

    def _tell(self, message: WatchResponse) -> None:
        if self._used:
            message.usages.extend(self._used)
            self._used.clear()
        if self._evicted:
            message.evictions.extend(Eviction(dispatch=d, kept_tokens=kept) for d, kept in self._evicted.items())
            self._evicted.clear()

    def ended(self, dispatch: str) -> None:
        """It has ended; its router knows from the stream's end."""
        self._fresh.pop(dispatch, None)


class Reporter:
    """Watches, live dispatches and the ticker that wakes watches. ``poke`` after anything changed."""

    def __init__(self, state: NodeState, clock: Callable[[], float]) -> None:
        """``clock`` is the running loop's time."""
        self.clock = clock
        self.rates = EngineRates()
        self._state = state
        self._live: dict[str, dict[str, None]] = {}  # by watcher; every id belongs to a live request
        self._watches: dict[Watch, None] = {}
        self._by_watcher: dict[str, list[Watch]] = {}
        self._dirty = asyncio.Event()
        self._budget = Budget(clock())

    @property
    def watches(self) -> int:
        """Open watches."""
        return len(self._watches)

    def poke(self) -> None:
        """Something changed; cheap, so call it for every request."""
        self._dirty.set()

    def count(self, dispatch: str) -> None:
        """A request with this dispatch id is in the ledger or the queue."""
        watcher = dispatch.rpartition("-")[0]
        self._live.setdefault(watcher, {})[dispatch] = None
        for watch in self._by_watcher.get(watcher, ()):
            watch.counted(dispatch)

    def end(self, dispatch: str) -> None:
        """That request has ended."""
        watcher = dispatch.rpartition("-")[0]
        live = self._live.get(watcher)
        if live is not None:
            live.pop(dispatch, None)
            if not live:
                del self._live[watcher]
        for watch in self._by_watcher.get(watcher, ()):
            watch.ended(dispatch)

    def used(self, dispatch: str, prompt_tokens: int, cached_tokens: int) -> None:
        """A counted dispatch has its first token; its prompts really had so many tokens, and so many were cached."""
        for watch in self._by_watcher.get(dispatch.rpartition("-")[0], ()):
            watch.used(dispatch, prompt_tokens, cached_tokens)

    def evicted(self, dispatch: str, kept_tokens: int) -> None:
        """The engine's cache has lost what is behind so many tokens of a dispatch's prompt."""
        for watch in self._by_watcher.get(dispatch.rpartition("-")[0], ()):
            watch.evicted(dispatch, kept_tokens)

    def live(self, watcher: str) -> list[str]:
        """All counted dispatches of a watcher that have not ended."""
        return list(self._live.get(watcher, ()))

    def open(self, watcher: str) -> Watch:
        """Begin a watch; ``close`` it in a ``finally``. Raises LayaError."""
        if not 0 < len(watcher) <= MAX_WATCHER_ID or not watcher.isprintable():
            raise invalid(f"watcher_id must have 1 to {MAX_WATCHER_ID} printable characters.", "watcher_id")
        if len(self._watches) >= MAX_WATCHES:
            raise _too_many()
        watch = Watch(self, watcher)
        self._watches[watch] = None
        self._by_watcher.setdefault(watcher, []).append(watch)
        if self._budget.take(self.clock()):
            watch.wake()
        else:
            self.poke()  # many come at once, or the same one again and again: the ticker gives it its turn
        return watch

    def close(self, watch: Watch) -> None:
        """End a watch."""
        if self._watches.pop(watch, 0) is None:
            peers = self._by_watcher[watch.watcher]
            peers.remove(watch)
            if not peers:
                del self._by_watcher[watch.watcher]

    def load(self) -> Load:
        """The numbers now."""
        state = self._state
        serving = state.serving_or_none
        if serving is None:
            return Load(draining=state.draining)
        admission = serving.admission
        ledger = admission.ledger
        return Load(
            ledger.capacity_tokens,
            admission.headroom_tokens,
            admission.running,
            admission.waiting,
            admission.queued_prefill_tokens,
            state.ready,
            state.draining,
            admission.closed_reason,
            admission.settings.max_sequences,
            admission.settings.max_prefill_tokens,
        )

    def message(self, load: Load, sequence: int, ids: list[str], full: bool) -> WatchResponse:
        """A report."""
        return WatchResponse(
            sequence=sequence,
            boot_id=self._state.boot_id,
            kv_capacity_tokens=load.capacity,
            headroom_tokens=load.headroom,
            running=load.running,
            waiting=load.waiting,
            queued_prefill_tokens=load.queued_prefill,
            prefix_hit_rate=self.rates.prefix_hit_rate,
            prefill_tokens_per_second=self.rates.prefill,
            decode_tokens_per_second=self.rates.decode,
            counted_dispatches=ids,
            full=full,
            draining=load.draining,
            ready=load.ready,
            closed_reason=load.closed_reason,
        )

    async def run(self) -> None:
        """Wake watches when a report is due; runs until cancelled."""
        while True:
            wait = self._seconds_to_heartbeat()
            if wait > 0:
                try:
                    async with asyncio.timeout(wait):
                        await self._dirty.wait()
                except TimeoutError:
                    pass
            self._dirty.clear()
            self.tick()
            # At once, and then not again for a while: whatever happens in the gap goes out together.
            await asyncio.sleep(SHORTEST_GAP)

    def tick(self) -> None:
        """Sample the engine and wake the watches that are due."""
        serving = self._state.serving_or_none
        if serving is not None:
            self.rates.sample(serving.engine.stats())
        now, load = self.clock(), self.load()
        waiting = [watch for watch in self._watches if not watch.due and self._wants(watch, load, now)]
        waiting.sort(key=_silent_since)
        for watch in waiting:
            if not self._budget.take(now):
                self.poke()  # the rest at the next tick
                return
            watch.wake()

    def _wants(self, watch: Watch, load: Load, now: float) -> bool:
        return watch.sent is None or watch.sent_at <= now - HEARTBEAT or load.differs(watch.sent)

    def _seconds_to_heartbeat(self) -> float:
        oldest = min((watch.sent_at for watch in self._watches), default=self.clock())
        return oldest + HEARTBEAT - self.clock()


def _silent_since(watch: Watch) -> float:
    return watch.sent_at


def _too_many() -> LayaError:
    return exhausted(f"{MAX_WATCHES} watches are open already; close some first.", "QUEUE_FULL", 1.0)
