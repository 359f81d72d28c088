"""Continuous batching for llama.cpp: which tokens the next step computes. Pure: no clock, no C.

Running sequences come first, one token each; what is left of the batch goes to prompts, in chunks, by priority and then
by arrival. Cells of the cache are counted per sequence, shared ones twice, so what is planned always has room. Where
admission promised more than there is (over-commit), the last sequence in that order is put back and begins again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from inference_node.engines.llama_cpp_sequence import LlamaRequest, LlamaSequence


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step and the cache hold."""

    step_tokens: int
    sequences: int
    cells: int
    long_prefill_tokens: int = 0  # tokens of one prompt in a step while others want some; 0: no bound
    shares_prompts: bool = True  # a prompt's cells can belong to several sequences


@dataclass(slots=True)
class Part:
    """Tokens of one sequence in a step, from ``start`` on; ``last`` where its next token is drawn."""

    sequence: LlamaSequence
    start: int
    count: int
    last: bool


@dataclass(slots=True)
class Step:
    """What one step does before it computes (``freed`` slots, ``shared`` prompts), and what it computes."""

    freed: list[int] = field(default_factory=list)
    shared: list[tuple[int, int, int]] = field(default_factory=list)  # source, target, tokens
    parts: list[Part] = field(default_factory=list)
    prefill_tokens: int = 0
    decodes: int = 0


class Scheduler:
    """Owns the queue and the slots. Used by the decoding thread alone; the counts may be read by others."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running: list[LlamaSequence] = []
        self.preemptions = 0
        self.used = 0  # cells, shared ones counted for each
        self.waiting_live = 0
        self._waiting: list[tuple[int, int, LlamaSequence]] = []
        self._slots = list(range(limits.sequences - 1, -1, -1))
        self._freed: list[int] = []  # slots whose cells the cache has yet to forget
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting_live or self._freed)

    def add(self, request: LlamaRequest) -> None:
        """Queue a request: its first sequence, and the others too unless they can share its prompt later."""
        first = request.sequences[:1] if self.limits.shares_prompts else request.sequences
        for sequence in first:
            self._push(sequence)

    def follow(self, request: LlamaRequest) -> None:
        """Queue the other sequences of a request whose prompt is in the cache."""
        if self.limits.shares_prompts:
            for sequence in request.sequences[1:]:
                self._push(sequence)

    def end(self, sequence: LlamaSequence) -> None:
        """Let go of a sequence, wherever it is; its cells are free at the next step. Idempotent."""
        if sequence.slot >= 0:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence.arrival > 0:
            self.waiting_live -= 1
        sequence.arrival = -1
        if len(self._waiting) > 64 and len(self._waiting) > 2 * self.waiting_live:
            self._waiting = [entry for entry in self._waiting if entry[1] == entry[2].arrival]
            heapq.heapify(self._waiting)

    def plan(self) -> Step:
        """Choose the work of the next step and take the cells it needs."""
        step = Step()
        before = self.preemptions
        budget = self._plan_running(step)
        if self.preemptions == before:
            self._plan_waiting(step, budget)
        step.parts = [part for part in step.parts if part.sequence.slot >= 0]  # preempted in this very pass
        step.freed, self._freed = self._freed, []
        return step

    def undo(self, step: Step) -> None:
        """Take back a step that was planned and not computed; what it shared and freed stays so."""
        for part in step.parts:
            if part.sequence.slot >= 0:
                part.sequence.computed -= part.count
                self.used -= part.count

    def preempt_last(self) -> bool:
        """Put the last sequence back where another is left to go on; for a cache that turned out too small."""
        if len(self.running) < 2:
            return False
        self._preempt(self._last())
        return True

    def _push(self, sequence: LlamaSequence) -> None:
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._queue(sequence)

    def _queue(self, sequence: LlamaSequence) -> None:
        heapq.heappush(self._waiting, (sequence.request.call.priority, sequence.arrival, sequence))
        self.waiting_live += 1

    def _chunk(self) -> int:
        limits = self.limits
        alone = len(self.running) + self.waiting_live <= 1
        return limits.step_tokens if alone or not limits.long_prefill_tokens else limits.long_prefill_tokens

    def _plan_running(self, step: Step) -> int:
        budget = self.limits.step_tokens
        # Those that decode before those that still read their prompts: nobody's answer waits for another's question.
        for sequence in sorted(self.running, key=lambda s: len(s.tokens) - s.computed > 1):
            if budget == 0:
                break
            if sequence.slot >= 0:
                budget -= self._take(step, sequence, budget)
        return budget

    def _plan_waiting(self, step: Step, budget: int) -> None:
        waiting = self._waiting
        while waiting and budget > 0 and self._slots:
            _, arrival, sequence = waiting[0]
            if arrival != sequence.arrival:
                heapq.heappop(waiting)  # it has ended meanwhile
                continue
            share = self._shareable(sequence, step)
            if self.used + share + min(len(sequence.tokens) - share, budget, self._chunk()) > self.limits.cells:
                return
            heapq.heappop(waiting)
            self.waiting_live -= 1
            self._start(step, sequence, share)
            budget -= self._take(step, sequence, budget)

    def _shareable(self, sequence: LlamaSequence, step: Step) -> int:
        """Tokens of the prompt that its request's first sequence has in the cache; the last one is always computed."""
        first = sequence.request.sequences[0]
        if not self.limits.shares_prompts or first is sequence or first.slot < 0:
            return 0
        there = first.computed - sum(part.count for part in step.parts if part.sequence is first)
        return max(min(there, sequence.prompt_len - 1), 0)

    def _start(self, step: Step, sequence: LlamaSequence, share: int) -> None:
        sequence.slot = self._slots.pop()
        sequence.computed = share
        self.used += share
        self.running.append(sequence)
        if share:
            step.shared.append((sequence.request.sequences[0].slot, sequence.slot, share))

    def _take(self, step: Step, sequence: LlamaSequence, budget: int) -> int:
        """Plan a sequence's next tokens; how many."""
        missing = len(sequence.tokens) - sequence.computed
        count = min(missing, budget, self._chunk())
        while self.used + count > self.limits.cells:
            victim = self._last()
            self._preempt(victim)
            if victim is sequence:
                return 0
        self.used += count
        step.parts.append(Part(sequence, sequence.computed, count, count == missing))
        if missing == 1 and len(sequence.tokens) > sequence.prompt_len:
            step.decodes += 1
        else:
            step.prefill_tokens += count
        sequence.computed += count
        return count

    def _last(self) -> LlamaSequence:
        return max(self.running, key=lambda s: (s.request.call.priority, s.arrival))

    def _preempt(self, sequence: LlamaSequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self._release(sequence)
        self._queue(sequence)

    def _release(self, sequence: LlamaSequence) -> None:
        self.used -= sequence.computed
        self._slots.append(sequence.slot)
        self._freed.append(sequence.slot)
        sequence.slot = -1
        sequence.computed = 0
