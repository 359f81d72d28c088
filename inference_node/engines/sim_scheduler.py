"""The simulator's scheduler: continuous batching over paged KV, one step at a time. Pure: no clock, no I/O.

``plan`` decides what the next step computes and how long it takes; ``finish`` applies it. Running sequences come
first; what is left of the step's token budget goes to prefill, in chunks, by priority and then by arrival. When a
running sequence finds no block, the last one in that order is preempted and starts again later, as in vLLM.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from inference_node.engines.base import EngineStats, Finished
from inference_node.engines.sim_kv import BlockPool, block_hashes
from inference_node.engines.sim_sequence import SimRequest, SimSequence


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds and limits of the cost model."""

    prefill_tokens_per_second: float
    decode_base: float  # seconds of a step that decodes
    decode_per_sequence: float  # seconds more for each sequence in it
    max_step_tokens: int  # tokens a step computes at most
    max_num_seqs: int
    long_prefill_tokens: int = 0  # tokens a step computes of one prompt while others want some; 0: no bound


@dataclass(slots=True)
class Step:
    """What one step computes: sequences with their token counts, and its duration in seconds."""

    work: list[tuple[SimSequence, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    decodes: int = 0
    seconds: float = 0.0


class Scheduler:
    """Owns the queues and the block pool."""

    def __init__(self, costs: Costs, pool: BlockPool, block_tokens: int) -> None:
        self.costs = costs
        self.pool = pool
        self.block_tokens = block_tokens
        self.running: list[SimSequence] = []
        self.preemptions = 0
        self.stats = EngineStats()
        self.on_finished: Callable[[Finished], None] | None = None
        self._waiting: list[tuple[int, int, SimSequence]] = []  # heap by priority, then arrival
        self._arrivals = 0
        self._waiting_live = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.running) or self._waiting_live > 0

    def add(self, request: SimRequest) -> None:
        """Queue all sequences of a request."""
        for sequence in request.sequences:
            self._arrivals += 1
            sequence.arrival = self._arrivals
            self._push(sequence)

    def abort(self, request: SimRequest) -> None:
        """Drop what is left of a request; its blocks are free at once."""
        for sequence in request.sequences:
            if not sequence.done:
                self._end(sequence)
        if len(self._waiting) > 64 and len(self._waiting) > 2 * self._waiting_live:
            self._waiting = [entry for entry in self._waiting if not entry[2].done]
            heapq.heapify(self._waiting)

    def plan(self) -> Step:
        """Choose the work of the next step and take the blocks it needs."""
        step = Step()
        before = self.preemptions
        budget = self._plan_running(step)
        if self.preemptions == before:
            self._plan_waiting(step, budget)
        costs = self.costs
        step.seconds = step.prefill_tokens / costs.prefill_tokens_per_second
        if step.decodes:
            step.seconds += costs.decode_base + costs.decode_per_sequence * step.decodes
        return step

    def finish(self, step: Step) -> list[SimRequest]:
        """Apply a step that has run: every sequence whose prompt is computed gets its next token.

        Returns the requests with something new to read, each once.
        """
        stats = self.stats
        if step.prefill_tokens:
            stats.prompt_tokens += step.prefill_tokens
            stats.prefill_seconds += step.seconds
        if step.decodes:
            stats.decode_seconds += step.seconds
        touched: dict[SimRequest, None] = {}
        for sequence, count in step.work:
            if sequence.done or not sequence.blocks:
                continue  # aborted or preempted meanwhile
            sequence.computed += count
            if sequence.computed < len(sequence.tokens):
                continue
            touched[sequence.request] = None
            if sequence.request.call.sampling.max_tokens == 0:
                sequence.end_without_token()
                self._end(sequence)
                continue
            stats.generation_tokens += 1
            if sequence.append_next():
                self._end(sequence)
                if self.on_finished is not None:
                    asked = sequence.request.call.sampling.max_tokens + sequence.prompt_len - sequence.start_len
                    new = len(sequence.tokens) - sequence.start_len
                    self.on_finished(Finished(sequence.start_len, asked, new))
        return list(touched)

    def snapshot(self) -> EngineStats:
        """Counters and gauges now."""
        stats = self.stats
        stats.running = len(self.running)
        stats.waiting = self._waiting_live
        stats.kv_usage = self.pool.usage
        stats.preemptions = self.preemptions
        stats.extra["kv_evictions"] = float(self.pool.evictions)
        return stats

    def _push(self, sequence: SimSequence) -> None:
        heapq.heappush(self._waiting, (sequence.request.call.priority, sequence.arrival, sequence))
        self._waiting_live += 1

    def _chunk(self) -> int:
        """Tokens that one prompt may have of a step: vLLM too gives a lone one all of it."""
        costs = self.costs
        alone = len(self.running) + self._waiting_live <= 1
        return costs.max_step_tokens if alone or not costs.long_prefill_tokens else costs.long_prefill_tokens

    def _plan_running(self, step: Step) -> int:
        budget, chunk = self.costs.max_step_tokens, self._chunk()
        for sequence in list(self.running):
            if budget == 0:
                break
            if sequence.done or not sequence.blocks:
                continue  # preempted in this very pass
            need = len(sequence.tokens) - sequence.computed
            count = min(need, budget, chunk)
            if not self._reserve(sequence, sequence.computed + count):
                continue
            budget -= count
            self._count(step, sequence, count)
        return budget

    def _plan_waiting(self, step: Step, budget: int) -> None:
        waiting, chunk = self._waiting, self._chunk()
        while waiting and budget > 0 and len(self.running) < self.costs.max_num_seqs:
            sequence = waiting[0][2]
            if sequence.done:
                heapq.heappop(waiting)
                continue
            count = self._start(sequence, min(budget, chunk))
            if count == 0:
                return
            heapq.heappop(waiting)
            self._waiting_live -= 1
            self.running.append(sequence)
            budget -= count
            self._count(step, sequence, count)

    def _start(self, sequence: SimSequence, budget: int) -> int:
        """Give a waiting sequence its first blocks; the tokens it computes in this step, 0 when there is no room."""
        self._hash(sequence)
        size = self.block_tokens
        # The last token is always computed: its logits choose the next one.
        cached = self.pool.find(sequence.hashes[: (len(sequence.tokens) - 1) // size])
        hit = len(cached) * size
        count = min(len(sequence.tokens) - hit, budget)
        need = -(-(hit + count) // size) - len(cached)
        if need > self.pool.free_beside(cached):
            return 0
        self.pool.take(cached)
        sequence.blocks = cached + (self.pool.allocate(need) or [])
        sequence.computed = hit
        if sequence.cached < 0:
            sequence.cached = min(hit, sequence.prompt_len)
        if self.pool.keep:
            self.stats.prefix_queries += len(sequence.tokens)
            self.stats.prefix_hits += hit
        return count

    def _reserve(self, sequence: SimSequence, tokens: int) -> bool:
        """Blocks for so many tokens, by preemption if need be; False when the sequence itself was preempted."""
        need = -(-tokens // self.block_tokens) - len(sequence.blocks)
        if need <= 0:
            return True
        while (got := self.pool.allocate(need)) is None:
            victim = max(self.running, key=lambda s: (s.request.call.priority, s.arrival))
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += got
        return True

    def _preempt(self, sequence: SimSequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
        self._push(sequence)

    def _count(self, step: Step, sequence: SimSequence, count: int) -> None:
        step.work.append((sequence, count))
        if len(sequence.tokens) > sequence.start_len and count == 1:
            step.decodes += 1
        else:
            step.prefill_tokens += count
        # Findable from now on: whoever starts in the same step shares them, as in vLLM.
        self._publish(sequence, sequence.computed + count)

    def _hash(self, sequence: SimSequence) -> None:
        """Know the hashes of all full blocks of the tokens there are."""
        size = self.block_tokens
        known = len(sequence.hashes)
        if self.pool.keep and len(sequence.tokens) // size > known:
            parent = sequence.hashes[-1] if known else None
            rest = sequence.tokens[known * size :]
            sequence.hashes += block_hashes(rest, size, sequence.request.call.cache_salt, parent)

    def _publish(self, sequence: SimSequence, computed: int) -> None:
        size = self.block_tokens
        before, after = sequence.computed // size, computed // size
        if after > before and self.pool.keep:
            self._hash(sequence)
            for i in range(before, after):
                self.pool.publish(sequence.blocks[i], sequence.hashes[i])

    def _end(self, sequence: SimSequence) -> None:
        sequence.done = True
        sequence.request.live -= 1
        if sequence.blocks:
            self.running.remove(sequence)
            self.pool.release(sequence.blocks)
            sequence.blocks = []
        else:
            self._waiting_live -= 1
