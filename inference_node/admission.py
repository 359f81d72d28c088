"""Who may use the engine now, who waits, and who is told to come back later.

Admission stands before both services and the node's HTTP. It holds KV blocks in the ledger for all that a request may
need, keeps the prompt tokens in prefill under a cap (so that a burst of prompts cannot ruin everyone's first token),
and lets in no more sequences than the engine runs. What does not fit now waits in its lane (``lanes``), in a bounded
queue and for a bounded time.

Two lanes share the blocks. A request that is first in its lane and finds no room may be passed by the other lane's,
for as many blocks as it asks for itself and not by a lower priority; then what comes free is kept for it. So short
prompts flow past a long one that waits, and yet it gets its turn.

``submit`` and ``expire`` are plain calls on an injected clock; ``admit`` is the same for a task that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inference_node import waits
from inference_node.admitted import Admitted
from inference_node.closings import Closings
from inference_node.engines.base import EngineInfo
from inference_node.lanes import Lane, Need, Waiter, first_of, order_of
from inference_node.lengths import Overcommit
from inference_node.limits import AdmissionSettings, Ramp
from inference_node.memory import Hold, Ledger
from inference_node.sizes import Sizes
from inference_node.waits import Waits
from shared.errors import Code, LayaError, exhausted

__all__ = ["Admission", "AdmissionSettings", "Admitted", "Need", "Waiter"]


class Admission:
    """See the module's docstring. ``on_change`` runs after every change of what a report says."""

    def __init__(
        self,
        ledger: Ledger,
        info: EngineInfo,
        settings: AdmissionSettings,
        clock: Callable[[], float],
        overcommit: Overcommit | None = None,
    ) -> None:
        """``clock`` is in seconds; for ``admit`` it must be the running loop's."""
        self.ledger = ledger
        self.settings = settings
        self.waits = Waits(ledger.capacity_blocks, settings.max_sequences, settings.max_prefill_tokens)
        self.ramp = Ramp(settings.ramp_seconds, clock())
        self.sizes = Sizes(ledger, info.max_seq_len, overcommit)
        self.short, self.long = self.lanes = (Lane("short"), Lane("long"))
        self.sequences = 0
        self.on_change: Callable[[], None] = lambda: None
        self._clock = clock
        self._number = 0
        self._closings = Closings()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Admitted requests that have not ended."""
        return self.ledger.holds

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self.short.waiting + self.long.waiting

    @property
    def waiting_prefill_tokens(self) -> int:
        """Prompt tokens in the queue."""
        return self.short.tokens + self.long.tokens

    @property
    def prefill_in_flight(self) -> int:
        """Prompt tokens admitted and not yet prefilled."""
        return self.short.prefill + self.long.prefill

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens, admitted or waiting, that are not yet prefilled."""
        return self.prefill_in_flight + self.waiting_prefill_tokens

    @property
    def headroom_tokens(self) -> int:
        """Tokens that may be promised to newcomers: capacity minus holds and what waits, less while the ramp is on."""
        ledger = self.ledger
        taken = ledger.held_blocks + self.short.blocks + self.long.blocks
        return max(0, self._block_limit() - taken) * ledger.block_tokens

    @property
    def ramp_share(self) -> float:
        """Share of the room that is given now, 1 once the ramp is over."""
        return self.ramp.share(self._clock())

    def queue_limit(self, lane: Lane) -> int:
        """Prompt tokens that may wait in a lane: so much as is prefilled in the configured time, by its share."""
        settings, rate = self.settings, self.waits.measured_rate
        if settings.max_queued_tokens:
            return settings.max_queued_tokens
        if rate <= 0.0:
            return self._lane_cap(lane)
        return int(rate * settings.queue_prefill_seconds * self._lane_cap(lane) / settings.max_prefill_tokens)

    @property
    def closed_reason(self) -> str:
        """Why nothing new is taken, empty while it is."""
        return self._closings.reason

    def close(self, owner: str, reason: str, *, sheds: bool = False, retry: float = waits.UNKNOWN) -> None:
        """Take nothing new from now on, for a reason in one sentence; what waits already still gets its turn.

        With ``sheds`` it does not: room is short, so who waits is kept waiting until their time is over. ``retry`` is
        what a refused client is told, in seconds.
        """
        self._closings.add(owner, reason, sheds, retry)
        self.on_change()

    def reopen(self, owner: str) -> None:
        """Withdraw one owner's closing."""
        if self._closings.withdraw(owner):
            self._changed()

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
        blocks = self.sizes.hold(need)
        if self._closings:
            raise self._closings.refusal()
        lane = self.long if need.prefill_tokens > self.settings.long_prompt_tokens else self.short
        if self.waiting == 0 and self._lane_open(lane, need) and self._room(need, blocks):
            return self._admit(lane, need, blocks)
        waiter = self._waiter(lane, need, blocks, priority, deadline, settle)
        first = lane.goes_first(waiter)
        if first:
            lane.push(waiter)
            admitted = self._next() is waiter
            lane.leave(waiter)
            if admitted:
                return self._admit(lane, need, blocks)
        self._check_queue(waiter, first)
        lane.push(waiter)
        self._idle.clear()
        self._pump()
        self.on_change()
        return waiter

    def expire(self, now: float) -> float | None:
        """Refuse those that have waited their time; when to call again, None when nobody waits."""
        for waiter in [w for lane in self.lanes for w in lane.live() if w.expires <= now]:
            self._expire(waiter)
        if not self.ramp.done:
            self._changed()
        times = [w.expires for lane in self.lanes for w in lane.live()]
        step = self.ramp.next_step(now) if times else None
        return min(times if step is None else [*times, step], default=None)

    async def warm_up(self) -> None:
        """Let in what waits as the ramp grows; returns when it is whole."""
        while (at := self.ramp.next_step(self._clock())) is not None:
            await asyncio.sleep(at - self._clock())
            self._changed()

    def wait_estimate(self, lane: Lane, need: Need, blocks: int) -> float | None:
        """Seconds until a request like this may find room, behind all who wait; None while the rates are not known."""
        ledger = self.ledger
        missing = self.short.blocks + self.long.blocks + blocks + ledger.held_blocks - self._block_limit()
        sequences = self.short.sequences + self.long.sequences + need.sequences + self.sequences
        tokens = lane.prefill + lane.tokens + need.prefill_tokens
        return waits.longest(
            self.waits.for_blocks(missing, ledger.held_blocks),
            self.waits.for_sequences(sequences - self._sequence_limit(), self.sequences),
            self.waits.for_prefill(tokens - max(self._lane_cap(lane), need.prefill_tokens), self.prefill_in_flight),
        )

    def _waiter(
        self,
        lane: Lane,
        need: Need,
        blocks: int,
        priority: int,
        deadline: float | None,
        settle: Callable[[Admitted | LayaError], None],
    ) -> Waiter:
        now, settings = self._clock(), self.settings
        self._number += 1
        order = order_of(priority, now, settings.ageing, self._number)
        waiter = Waiter(lane, need, blocks, priority, now, order, settle, self._left)
        waiter.expires = now + settings.max_queue_seconds
        if deadline is not None and deadline < waiter.expires:
            waiter.expires, waiter.by_deadline = deadline, True
        return waiter

    def _check_queue(self, waiter: Waiter, first: bool) -> None:
        """Raise RESOURCE_EXHAUSTED where waiting is of no use. The first of a lane may wait, if there is a place."""
        lane, need, waiting = waiter.lane, waiter.need, self.waiting
        full = waiting >= self.settings.max_queued
        if first and not full:
            return
        wait = self.wait_estimate(lane, need, waiter.blocks)
        longest = max(waiter.expires - waiter.asked, 0.0)
        limit = self.queue_limit(lane)
        if full:
            why = f"{waiting} requests wait already"
        elif lane.tokens + need.prefill_tokens > limit:
            why = f"{lane.tokens} prompt tokens wait in its {lane.name} lane already, which queues no more than {limit}"
        elif wait is not None and wait > longest:
            why = f"there would be room in about {wait:.1f} s, and a request may wait {longest:.1f} s"
        else:
            return
        raise exhausted(f"this node is busy: {why}; try again later", "QUEUE_FULL", waits.hint(wait))

    def _block_limit(self) -> int:
        ramp, total = self.ramp, self.ledger.capacity_blocks
        return total if ramp.done else ramp.of(total, self._clock())

    def _sequence_limit(self) -> int:
        ramp, total = self.ramp, self.settings.max_sequences
        return total if ramp.done else ramp.of(total, self._clock())

    def _lane_cap(self, lane: Lane) -> int:
        """Prompt tokens of a lane in prefill: short ones have the long ones' share while there are none."""
        settings = self.settings
        if lane is self.long:
            return settings.long_share
        return settings.max_prefill_tokens - (settings.long_share if self.long.prefill else 0)

    def _lane_open(self, lane: Lane, need: Need) -> bool:
        """Whether the lane's prefill budget lets it pass. One alone may be above it, else it would never run."""
        return not lane.prefill or lane.prefill + need.prefill_tokens <= self._lane_cap(lane)

    def _room(self, need: Need, blocks: int) -> bool:
        """Whether the engine can take it. One alone may be above all but the ledger's bounds."""
        ledger = self.ledger
        if not ledger.fits(blocks):
            return False
        if not ledger.holds:
            return True
        if ledger.held_blocks + blocks > self._block_limit():
            return False
        if self.sequences + need.sequences > self._sequence_limit():
            return False
        return self.sizes.engine_has_room(need)

    def _may_pass(self, waiter: Waiter, blocked: Waiter) -> bool:
        """Whether the other lane's first may go before one that finds no room, and count it if it takes from that."""
        blocks, sequences = waiter.blocks, waiter.need.sequences
        takes_blocks = self._block_limit() - self.ledger.held_blocks - blocks < blocked.blocks
        takes_seats = self._sequence_limit() - self.sequences - sequences < blocked.need.sequences
        if (takes_blocks or takes_seats) and waiter.priority > blocked.priority:
            return False
        if takes_blocks and blocked.passed_blocks + blocks > blocked.blocks:
            return False
        if takes_seats and blocked.passed_sequences + sequences > blocked.need.sequences:
            return False
        blocked.passed_blocks += blocks if takes_blocks else 0
        blocked.passed_sequences += sequences if takes_seats else 0
        return True

    def _next(self) -> Waiter | None:
        """Whose turn it is; None when nobody's. One whose lane is full stands in nobody's way."""
        first, second = first_of(self.short.head(), self.long.head())
        blocked = None
        if first is not None and self._lane_open(first.lane, first.need):
            if self._room(first.need, first.blocks):
                return first
            blocked = first
        if second is None or not self._lane_open(second.lane, second.need):
            return None
        if not self._room(second.need, second.blocks):
            return None
        return second if blocked is None or self._may_pass(second, blocked) else None

    def _pump(self) -> None:
        while not self._closings.sheds:
            waiter = self._next()
            if waiter is None:
                return
            waiter.lane.leave(waiter)
            waiter.settle(self._admit(waiter.lane, waiter.need, waiter.blocks))

    def _admit(self, lane: Lane, need: Need, blocks: int) -> Admitted:
        admitted = Admitted(self, self.ledger.hold(blocks), need, lane, self._clock())
        lane.prefill += need.prefill_tokens
        self.sequences += need.sequences
        self._idle.clear()
        self.on_change()
        return admitted

    def _left(self, waiter: Waiter) -> None:
        waiter.lane.leave(waiter)
        self._changed()

    def _expire(self, waiter: Waiter) -> None:
        if waiter.settled:
            return
        waited = waiter.expires - waiter.asked
        lane, need = waiter.lane, waiter.need
        lane.leave(waiter)
        if waiter.by_deadline:
            error = LayaError(
                Code.DEADLINE_EXCEEDED, "DEADLINE", f"the deadline passed after {waited:.1f} s in this node's queue"
            )
        else:
            hint = waits.hint(self.wait_estimate(lane, need, waiter.blocks))
            error = exhausted(
                f"no room came free on this node within {waited:.1f} s; try again later", "QUEUE_TIMEOUT", hint
            )
        waiter.settle(error)
        self._changed()

    def _prefill_done(self, lane: Lane, tokens: int, since: float) -> None:
        lane.prefill -= tokens
        self.waits.prefilled(tokens, self._clock() - since)
        self._changed()

    def _release(self, hold: Hold, lane: Lane, prefill: int, sequences: int, since: float) -> None:
        hold.release()
        lane.prefill -= prefill
        self.sequences -= sequences
        self.waits.ended(hold.blocks, sequences, self._clock() - since)
        self._changed()

    def _changed(self) -> None:
        self._pump()
        if not self.waiting and not self.ledger.holds:
            self._idle.set()
        self.on_change()
