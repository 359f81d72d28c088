"""Who may use the engine now, who waits, and who is told to come back later.

Admission stands before both services and the node's HTTP. It holds KV blocks in the ledger for all that a request may
need, keeps the prompt tokens in prefill under a cap (so that a burst of prompts cannot ruin everyone's first token),
and lets in no more sequences than the engine runs. What does not fit now waits by priority, then in order of arrival,
in a bounded queue and for a bounded time.

``submit`` and ``expire`` are plain calls on an injected clock; ``admit`` is the same for a task that waits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference_node.engines.base import EngineInfo
from inference_node.memory import Hold, Ledger
from inference_node.rates import Rate
from shared.config.schema import InferenceConfig
from shared.errors import Code, LayaError, exhausted, invalid, unavailable

PREFILL_STEPS = 2  # default cap of prefill tokens, in engine steps: one running, one ready to follow
SHORTEST_RETRY, LONGEST_RETRY, UNKNOWN_RETRY = 0.1, 30.0, 1.0


@dataclass(frozen=True, slots=True)
class Need:
    """What a request asks for: the tokens of each of its prompts, new tokens per sequence, sequences per prompt."""

    prompts: Sequence[int]
    max_new_tokens: int
    n: int = 1

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens, each prompt once."""
        return sum(self.prompts)

    @property
    def sequences(self) -> int:
        """Sequences in all."""
        return self.n * len(self.prompts)


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Bounds: waiting requests, seconds they wait, prompt tokens in prefill, sequences in the engine."""

    max_queued: int
    max_queue_seconds: float
    max_prefill_tokens: int
    max_sequences: int

    @staticmethod
    def of(config: InferenceConfig, info: EngineInfo) -> AdmissionSettings:
        """From the node's configuration, with the engine's own figures where it says 0."""
        return AdmissionSettings(
            config.max_queued,
            config.max_queue_seconds,
            config.max_prefill_tokens or PREFILL_STEPS * info.max_prefill_tokens,
            info.max_num_seqs,
        )


class Admitted:
    """One admitted request. ``release`` it exactly when it has ended; more calls change nothing."""

    __slots__ = ("_admission", "_hold", "_prefill", "_sequences")

    def __init__(self, admission: Admission, hold: Hold, need: Need) -> None:
        self._admission = admission
        self._hold = hold
        self._prefill = need.prefill_tokens
        self._sequences = need.sequences

    @property
    def blocks(self) -> int:
        """KV blocks it holds."""
        return self._hold.blocks

    def prefill_done(self) -> None:
        """The first token is there: the request's share of the prefill cap is free."""
        tokens = self._prefill
        if tokens:
            self._prefill = 0
            self._admission._prefill_done(tokens)

    def release(self) -> None:
        """The request has ended."""
        if not self._hold.released:
            tokens, self._prefill = self._prefill, 0
            self._admission._release(self._hold, tokens, self._sequences)


class Waiter:
    """One waiting request; ``settle`` is called once, with what became of it. ``cancel`` when nobody waits any more."""

    __slots__ = ("_admission", "_settle", "asked", "blocks", "by_deadline", "expires", "need", "order", "priority")

    def __init__(self, admission: Admission, need: Need, blocks: int, priority: int, order: int) -> None:
        self._admission = admission
        self._settle: Callable[[Admitted | LayaError], None] | None = None
        self.need = need
        self.blocks = blocks
        self.priority = priority
        self.order = order
        self.asked = 0.0
        self.expires = 0.0
        self.by_deadline = False

    def __lt__(self, other: Waiter) -> bool:
        return (self.priority, self.order) < (other.priority, other.order)

    @property
    def settled(self) -> bool:
        """Whether it has been admitted, refused or cancelled."""
        return self._settle is None

    def settle(self, outcome: Admitted | LayaError) -> None:
        """Hand the outcome over; later calls change nothing."""
        callback, self._settle = self._settle, None
        if callback is not None:
            callback(outcome)

    def cancel(self) -> None:
        """Leave the queue."""
        if self._settle is not None:
            self._settle = None
            self._admission._left(self)


class Admission:
    """See the module's docstring. ``on_change`` runs after every change of what a report says."""

    def __init__(
        self, ledger: Ledger, info: EngineInfo, settings: AdmissionSettings, clock: Callable[[], float]
    ) -> None:
        """``clock`` is in seconds; for ``admit`` it must be the running loop's."""
        self.ledger = ledger
        self.settings = settings
        self.prefill_in_flight = 0
        self.sequences = 0
        self.waiting = 0
        self.waiting_prefill_tokens = 0
        self.on_change: Callable[[], None] = lambda: None
        self._max_seq_len = info.max_seq_len
        self._clock = clock
        self._queue: list[Waiter] = []  # heap; settled ones are dropped when they come up
        self._waiting_blocks = 0
        self._order = 0
        self._closed: dict[str, str] = {}
        self._freed_blocks = Rate(10.0, clock())
        self._freed_prefill = Rate(10.0, clock())
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Admitted requests that have not ended."""
        return self.ledger.holds

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens, admitted or waiting, that are not yet prefilled."""
        return self.prefill_in_flight + self.waiting_prefill_tokens

    @property
    def closed_reason(self) -> str:
        """Why nothing new is taken, empty while it is."""
        return next(iter(self._closed.values()), "")

    def close(self, owner: str, reason: str) -> None:
        """Take nothing new from now on, for a reason in one sentence; what waits already still gets its turn."""
        self._closed[owner] = reason
        self.on_change()

    def reopen(self, owner: str) -> None:
        """Withdraw one owner's closing."""
        if self._closed.pop(owner, None) is not None:
            self.on_change()

    async def wait_idle(self) -> None:
        """Return once nothing runs and nothing waits."""
        await self._idle.wait()

    async def admit(
        self,
        need: Need,
        deadline: float | None = None,
        priority: int = 0,
        counted: Callable[[], None] | None = None,
    ) -> Admitted:
        """Wait for room. Raises LayaError; a cancelled task leaves neither hold nor place behind.

        ``counted`` is called once the request is in the ledger or in the queue; not when it is refused at once.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Admitted] = loop.create_future()

        def settle(outcome: Admitted | LayaError) -> None:
            if future.done():
                if isinstance(outcome, Admitted):
                    outcome.release()
            elif isinstance(outcome, Admitted):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        got = self.submit(need, priority, deadline, settle)
        if counted is not None:
            counted()
        if isinstance(got, Admitted):
            return got
        timer = loop.call_at(got.expires, self._expire, got)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release()
            raise
        finally:
            timer.cancel()
            got.cancel()

    def submit(
        self, need: Need, priority: int, deadline: float | None, settle: Callable[[Admitted | LayaError], None]
    ) -> Admitted | Waiter:
        """Admit at once, or queue; ``settle`` is called only for a Waiter. Raises LayaError for a refusal at once."""
        blocks = self.check(need)
        if self._closed:
            raise unavailable(f"this node takes no new request: {self.closed_reason}", "DRAINING", UNKNOWN_RETRY)
        if self.waiting == 0 and self._fits(need, blocks):
            return self._admit(need, blocks)
        settings = self.settings
        if self.waiting >= settings.max_queued:
            raise exhausted(
                f"this node is busy and {self.waiting} requests wait already; try again later",
                "QUEUE_FULL",
                self.retry_after(need, blocks),
            )
        self._order += 1
        waiter = Waiter(self, need, blocks, priority, self._order)
        waiter._settle = settle
        waiter.asked = self._clock()
        waiter.expires = waiter.asked + settings.max_queue_seconds
        if deadline is not None and deadline < waiter.expires:
            waiter.expires, waiter.by_deadline = deadline, True
        heapq.heappush(self._queue, waiter)
        self.waiting += 1
        self.waiting_prefill_tokens += need.prefill_tokens
        self._waiting_blocks += blocks
        self._idle.clear()
        self._pump()  # a higher priority may fit where the queue's head does not
        self.on_change()
        return waiter

    def check(self, need: Need) -> int:
        """The blocks a request needs. Raises INVALID_ARGUMENT for one that can never be served."""
        ledger = self.ledger
        longest = max(need.prompts)
        if longest + need.max_new_tokens > self._max_seq_len:
            raise invalid(
                f"the prompt has {longest} tokens and max_tokens asks for {need.max_new_tokens} more; the context is "
                f"{self._max_seq_len} tokens; shorten the prompt or lower max_tokens",
                "max_tokens" if longest < self._max_seq_len else "prompt",
                "CONTEXT_TOO_LONG",
            )
        blocks = sum(ledger.blocks_for(prompt, need.max_new_tokens, need.n) for prompt in need.prompts)
        if blocks > ledger.capacity_blocks:
            raise invalid(
                f"the request needs {blocks * ledger.block_tokens} tokens of KV cache for {need.sequences} sequences; "
                f"this node has {ledger.capacity_tokens}; lower n, max_tokens or the prompt",
                "n" if need.sequences > 1 else "max_tokens",
                "NEVER_FITS",
            )
        return blocks

    def expire(self, now: float) -> float | None:
        """Refuse those that have waited their time; when to call again, None when nobody waits."""
        for waiter in [w for w in self._queue if not w.settled and w.expires <= now]:
            self._expire(waiter)
        return min((w.expires for w in self._queue if not w.settled), default=None)

    def retry_after(self, need: Need, blocks: int) -> float:
        """Seconds until a request like this may find room, from the rates at which room comes free."""
        now = self._clock()
        missing = self._waiting_blocks + blocks - self.ledger.free_blocks
        waits = [self._freed_blocks.seconds_for(missing, now)]
        excess = self.queued_prefill_tokens + need.prefill_tokens - self.settings.max_prefill_tokens
        waits.append(self._freed_prefill.seconds_for(excess, now))
        known = [seconds for seconds in waits if seconds is not None]
        wait = max(known) if known else UNKNOWN_RETRY
        return min(max(wait, SHORTEST_RETRY), LONGEST_RETRY)

    def _fits(self, need: Need, blocks: int) -> bool:
        settings = self.settings
        if not self.ledger.fits(blocks):
            return False
        # One request alone may be above the caps, else it would never run.
        prefill, sequences = self.prefill_in_flight, self.sequences
        if prefill and prefill + need.prefill_tokens > settings.max_prefill_tokens:
            return False
        return not sequences or sequences + need.sequences <= settings.max_sequences

    def _admit(self, need: Need, blocks: int) -> Admitted:
        admitted = Admitted(self, self.ledger.hold(blocks), need)
        self.prefill_in_flight += need.prefill_tokens
        self.sequences += need.sequences
        self._idle.clear()
        self.on_change()
        return admitted

    def _pump(self) -> None:
        queue = self._queue
        while queue:
            waiter = queue[0]
            if waiter.settled:
                heapq.heappop(queue)
                continue
            if not self._fits(waiter.need, waiter.blocks):
                return
            heapq.heappop(queue)
            self._uncount(waiter)
            waiter.settle(self._admit(waiter.need, waiter.blocks))

    def _uncount(self, waiter: Waiter) -> None:
        self.waiting -= 1
        self.waiting_prefill_tokens -= waiter.need.prefill_tokens
        self._waiting_blocks -= waiter.blocks

    def _left(self, waiter: Waiter) -> None:
        self._uncount(waiter)
        if len(self._queue) > 64 and len(self._queue) > 2 * self.waiting:
            self._queue = [w for w in self._queue if not w.settled]
            heapq.heapify(self._queue)
        self._changed()

    def _expire(self, waiter: Waiter) -> None:
        if waiter.settled:
            return
        waited = waiter.expires - waiter.asked
        if waiter.by_deadline:
            error = LayaError(
                Code.DEADLINE_EXCEEDED, "DEADLINE", f"the deadline passed after {waited:.1f} s in this node's queue"
            )
        else:
            error = exhausted(
                f"no room came free on this node within {waited:.1f} s; try again later",
                "QUEUE_TIMEOUT",
                self.retry_after(waiter.need, waiter.blocks),
            )
        self._uncount(waiter)
        waiter.settle(error)
        self._changed()

    def _prefill_done(self, tokens: int) -> None:
        self.prefill_in_flight -= tokens
        self._freed_prefill.add(tokens, self._clock())
        self._changed()

    def _release(self, hold: Hold, prefill: int, sequences: int) -> None:
        hold.release()
        self.prefill_in_flight -= prefill
        self.sequences -= sequences
        self._freed_blocks.add(hold.blocks, self._clock())
        self._changed()

    def _changed(self) -> None:
        self._pump()
        if not self.waiting and not self.ledger.holds:
            self._idle.set()
        self.on_change()
