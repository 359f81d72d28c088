"""What a node computes, and when: the cost model of the ``sim`` engine, many steps at a time.

The rules are those of ``inference_node.engines.sim_scheduler``: continuous batching, running sequences first, prefill
in chunks with what is left of a step's tokens, the last to come preempted when a sequence finds no block. Between two
changes of the batch every step of pure decode takes the same time, so they are done in one leap, and a request costs a
handful of events however long its answer is. A test holds the two models against each other.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from inference_node.engines.base import EngineStats
from inference_node.engines.sim_scheduler import Costs
from loadtest.sim.cache import SegmentCache
from loadtest.sim.events import Events


class Run:
    """One request in an engine. Sizes are tokens."""

    __slots__ = (
        "cached", "computed", "ended", "ids", "length", "on_end", "on_first", "order", "private", "prompt", "published",
        "shared", "started_at", "todo",
    )  # fmt: skip

    def __init__(
        self,
        prompt: int,
        new: int,
        ids: Sequence[int],
        on_first: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self.prompt = prompt
        self.length = prompt
        """Tokens to compute before the next one comes out: the prompt, and after a preemption what came out before."""
        self.todo = new
        """New tokens still to come."""
        self.ids = ids
        self.on_first: Callable[[], None] | None = on_first
        self.on_end = on_end
        self.order = 0
        self.cached = -1
        """Prompt tokens found in the cache when it was first started; -1 before."""
        self.computed = 0
        self.shared: list[int] = []
        self.published = 0
        self.private = 0
        """Tokens held beside shared segments; while it decodes, as of ``started_at``."""
        self.started_at = 0
        self.ended = False

    def __lt__(self, other: Run) -> bool:
        return self.order < other.order


class LeapEngine:
    """One node's engine. ``speed`` below 1 makes it slow; ``kill`` makes it forget everything."""

    def __init__(self, events: Events, costs: Costs, blocks: int, block_tokens: int, segment_tokens: int) -> None:
        """``segment_tokens`` is the block size of the trace's prompt ids, a multiple of ``block_tokens``."""
        self.costs = costs
        self.speed = 1.0
        self.preemptions = 0
        self.stats = EngineStats()
        self.gaps: dict[int, int] = {}
        """Time between two tokens of a sequence, in units of 0.1 ms -> how many such."""
        self._events = events
        self._blocks = blocks
        self._block = block_tokens
        self._segment = segment_tokens
        self._cache = SegmentCache(blocks, segment_tokens // block_tokens)
        self._waiting: list[tuple[int, Run]] = []
        self._prefilling: deque[Run] = deque()
        self._decoding: list[tuple[int, int, Run]] = []  # heap by the step in which it ends
        self._steps = 0  # decode steps so far
        self._base = 0  # sum over those decoding of private - started_at
        self._prefill_blocks = 0  # private blocks of those prefilling
        self._orders = 0
        self._epoch = 0
        self._began = 0.0
        self._length = 0.0  # seconds of one step of the leap
        self._leap = 0  # steps in it; 0: idle
        self._work: list[tuple[Run, int]] = []

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Sequences that do not yet, or no more."""
        return len(self._waiting)

    @property
    def pending_prefill(self) -> int:
        """Prompt tokens not yet computed, as far as is known before they are looked up."""
        return sum(s.length - s.computed for s in self._prefilling) + sum(s.length for _, s in self._waiting)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1; half a block of waste for each sequence that decodes."""
        count = len(self._decoding)
        tokens = self._base + count * (self._steps + self._block / 2)
        return min(1.0, (self._cache.referenced + self._prefill_blocks + tokens / self._block) / self._blocks)

    def add(self, sequence: Run) -> None:
        """Queue a sequence."""
        self._orders += 1
        sequence.order = self._orders
        heapq.heappush(self._waiting, (sequence.order, sequence))
        if self._leap == 0:
            self._plan()
        elif self._leap > 1:
            self._cut()

    def kill(self) -> None:
        """The process is gone: nothing more comes out."""
        self._epoch += 1
        self._leap = 0
        for sequence in [s for _, s in self._waiting] + list(self._prefilling) + [s for *_, s in self._decoding]:
            sequence.ended = True
        self._waiting, self._decoding = [], []
        self._prefilling.clear()

    def snapshot(self) -> EngineStats:
        """Counters and gauges now, as ``Engine.stats`` gives them."""
        stats = self.stats
        stats.running, stats.waiting = self.running, self.waiting
        stats.kv_usage, stats.preemptions = self.usage, self.preemptions
        return stats

    # Planning: what the next step, or leap of steps, does.

    def _plan(self) -> None:
        costs = self.costs
        steps = self._room_to_decode()
        count = len(self._decoding)
        budget = costs.max_step_tokens - count
        alone = self.running + self.waiting <= 1
        chunk = costs.max_step_tokens if alone or not costs.long_prefill_tokens else costs.long_prefill_tokens
        tokens = 0
        for sequence in list(self._prefilling):
            tokens += self._continue(sequence, min(budget - tokens, chunk))
        while self._waiting and tokens < budget and self.running < costs.max_num_seqs:
            got = self._start(self._waiting[0][1], min(budget - tokens, chunk))
            if not got:
                break
            tokens += got
        if tokens:
            steps = 1
        seconds = tokens / costs.prefill_tokens_per_second
        if count:
            seconds += costs.decode_base + costs.decode_per_sequence * count
        elif not tokens:
            self._leap = 0
            return
        self._leap = steps
        self._length = seconds / self.speed
        self._began = self._events.now
        self._epoch += 1
        self._events.at(self._began + steps * self._length, self._finish, self._epoch)

    def _cut(self) -> None:
        """Somebody new waits: the leap ends with the step that is being computed."""
        done = max(1, math.ceil((self._events.now - self._began) / self._length - 1e-9))
        if done < self._leap:
            self._leap = done
            self._epoch += 1
            self._events.at(self._began + done * self._length, self._finish, self._epoch)

    def _finish(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        steps, length, count = self._leap, self._length, len(self._decoding)
        stats = self.stats
        seconds = steps * length
        if count:
            self._steps += steps
            stats.generation_tokens += steps * count
            stats.decode_seconds += seconds
            gap = round(length * 1e4)
            self.gaps[gap] = self.gaps.get(gap, 0) + steps * count
        ended: list[Run] = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            sequence = heapq.heappop(self._decoding)[2]
            self._base -= sequence.private - sequence.started_at
            self._release(sequence)
            ended.append(sequence)
        first: list[Run] = []
        if self._work:
            stats.prompt_tokens += sum(tokens for _, tokens in self._work)
            stats.prefill_seconds += seconds
            for sequence, tokens in self._work:
                self._computed(sequence, tokens, first, ended)
            self._work = []
        self._leap = 1  # who is added meanwhile is planned for with the rest
        for sequence in first:
            if sequence.on_first is not None:
                tell, sequence.on_first = sequence.on_first, None
                tell()
        for sequence in ended:
            sequence.ended = True
            sequence.on_end()
        if epoch == self._epoch:
            self._plan()

    def _computed(self, sequence: Run, tokens: int, first: list[Run], ended: list[Run]) -> None:
        if sequence.computed < 0:
            return  # preempted meanwhile
        sequence.computed += tokens
        if sequence.computed < sequence.length:
            return
        self._prefilling.remove(sequence)
        self._prefill_blocks -= self._whole(sequence.private)
        self.stats.generation_tokens += 1
        first.append(sequence)
        sequence.todo -= 1
        if sequence.todo <= 0:
            self._release(sequence)
            ended.append(sequence)
            return
        sequence.private += 1
        sequence.started_at = self._steps
        self._base += sequence.private - self._steps
        heapq.heappush(self._decoding, (self._steps + sequence.todo, sequence.order, sequence))

    # Memory.

    def _whole(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _used_at(self, step: int) -> int:
        """Blocks in use once ``step`` decode steps are done: exact when that is near the brim, else at most so many."""
        count = len(self._decoding)
        fixed = self._cache.referenced + self._prefill_blocks
        most = fixed + (self._base + count * (step + self._block - 1)) // self._block
        if most <= self._blocks:
            return most
        return fixed + sum(self._whole(s.private + step - s.started_at) for *_, s in self._decoding)

    def _room_to_decode(self) -> int:
        """Steps until the first sequence ends or a block is missing; preempts when one is missing now."""
        while self._decoding and self._used_at(self._steps + 1) > self._blocks:
            self._preempt(max([s for *_, s in self._decoding] + list(self._prefilling), key=lambda s: s.order))
        if not self._decoding:
            return 0
        steps = self._decoding[0][0] - self._steps
        if self._used_at(self._steps + steps) > self._blocks:
            fits, missing = 1, steps
            while missing - fits > 1:
                middle = (fits + missing) // 2
                if self._used_at(self._steps + middle) > self._blocks:
                    missing = middle
                else:
                    fits = middle
            steps = fits
        self._cache.keep_within(self._blocks - self._used_at(self._steps + steps))
        return steps

    def _fits(self, more: int) -> bool:
        """Whether so many more blocks are there beside those used after the coming step; makes room among unused."""
        left = self._blocks - self._used_at(self._steps + bool(self._decoding)) - more
        if left < 0:
            return False
        self._cache.keep_within(left)
        return True

    def _start(self, sequence: Run, budget: int) -> int:
        # The last token is always computed: its logits choose the next one.
        cache, segment = self._cache, self._segment
        found = cache.find(sequence.ids, (sequence.length - 1) // segment)
        hit = found * segment
        count = min(sequence.length - hit, budget)
        idle = cache.idle_of(sequence.ids, found) * cache.size
        if self._used_at(self._steps + bool(self._decoding)) + idle + self._whole(count) > self._blocks:
            return 0
        cache.take(sequence.ids, found)
        self._fits(self._whole(count))
        heapq.heappop(self._waiting)
        sequence.shared = list(sequence.ids[:found])
        sequence.published = found
        sequence.computed = hit
        sequence.private = 0
        if sequence.cached < 0:
            sequence.cached = min(hit, sequence.prompt)
            self.stats.prefix_queries += sequence.length
            self.stats.prefix_hits += hit
        self._prefilling.append(sequence)
        self._take(sequence, count)
        return count

    def _continue(self, sequence: Run, budget: int) -> int:
        if sequence.computed < 0 or budget <= 0:
            return 0
        count = min(sequence.length - sequence.computed, budget)
        while not self._fits(self._whole(sequence.private + count) - self._whole(sequence.private)):
            victim = max([s for *_, s in self._decoding] + list(self._prefilling), key=lambda s: s.order)
            self._preempt(victim)
            if victim is sequence:
                return 0
        self._take(sequence, count)
        return count

    def _take(self, sequence: Run, count: int) -> None:
        """Blocks for ``count`` more tokens of a prompt; whole segments can be found by others at once, as in vLLM."""
        before = self._whole(sequence.private)
        sequence.private += count
        self._work.append((sequence, count))
        ids, segment = sequence.ids, self._segment
        while sequence.published < len(ids) and (sequence.published + 1) * segment <= sequence.computed + count:
            key = ids[sequence.published]
            sequence.published += 1
            if self._cache.publish(key):  # else another computes it at the same time, and this one keeps its copy
                sequence.shared.append(key)
                sequence.private -= segment
        self._prefill_blocks += self._whole(sequence.private) - before

    def _release(self, sequence: Run) -> None:
        self._cache.release(sequence.shared)
        sequence.shared = []

    def _preempt(self, sequence: Run) -> None:
        self.preemptions += 1
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
            self._prefill_blocks -= self._whole(sequence.private)
            self._work = [entry for entry in self._work if entry[0] is not sequence]
        else:
            self._decoding = [entry for entry in self._decoding if entry[2] is not sequence]
            heapq.heapify(self._decoding)
            self._base -= sequence.private - sequence.started_at
            new = self._steps - sequence.started_at
            sequence.todo -= new
            sequence.length += new + 1
        self._release(sequence)
        sequence.computed = -1
        heapq.heappush(self._waiting, (sequence.order, sequence))
