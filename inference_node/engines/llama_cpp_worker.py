"""The thread that decodes: it owns llama.cpp's context, runs step after step, and hands over what is new.

Requests come and go by a queue that is emptied before every step, so a cancelled one is gone within one. What a step
gave is delivered to the event loop in one call. The thread waits when there is nothing to do.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from inference_node.engines.base import Delta, EngineError, EngineStats, Finished, Position
from inference_node.engines.llama_cpp_native import NO_ROOM, Context, Model, NativeError
from inference_node.engines.llama_cpp_sampler import Candidates, Chooser, Defaults, position
from inference_node.engines.llama_cpp_scheduler import Part, Scheduler, Step
from inference_node.engines.llama_cpp_sequence import LlamaRequest, LlamaSequence


@dataclass(slots=True)
class News:
    """What one step gave: deltas for their requests, requests that failed, sequences that ended by themselves."""

    deltas: list[tuple[LlamaRequest, Delta]] = field(default_factory=list)
    failures: list[tuple[LlamaRequest, EngineError]] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


class Worker:
    """One per engine; ``start`` and ``stop`` are the event loop's, ``submit`` and ``abort`` too."""

    def __init__(
        self,
        model: Model,
        context: Context,
        scheduler: Scheduler,
        defaults: Defaults,
        cores: tuple[int, ...],
        max_seq_len: int,
    ) -> None:
        self.scheduler = scheduler
        self.stats = EngineStats()
        self.died = ""  # why the thread has ended by itself
        self._model = model
        self._context = context
        self._defaults = defaults
        self._cores = cores
        self._window = max_seq_len
        self._candidates = Candidates(model)
        self._commands: SimpleQueue[tuple[bool, LlamaRequest] | None] = SimpleQueue()
        self._live: dict[LlamaRequest, None] = {}
        self._thread = threading.Thread(target=self._main, name="llama-decode", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Callable[[News], None] = lambda news: None

    def start(self, deliver: Callable[[News], None]) -> None:
        """Begin; ``deliver`` is called on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._thread.start()

    def submit(self, request: LlamaRequest) -> None:
        """Run a request. Its deltas come by ``deliver``."""
        self._commands.put((True, request))

    def abort(self, request: LlamaRequest) -> None:
        """Let go of a request before the next step; nothing more is delivered for it after that."""
        self._commands.put((False, request))

    def join(self, timeout: float) -> bool:
        """End the thread after the step it is in; blocks. False when that takes longer than ``timeout`` seconds."""
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            if self._cores:
                os.sched_setaffinity(0, self._cores)  # of this thread, and of those llama.cpp starts from it
            while self._obey():
                self._step()
        except NativeError as e:
            self.died = str(e)
        except Exception as e:  # a mistake of ours: the node must hear of it, not wait for ever
            self.died = f"its decoding thread failed: {e!r}"
        finally:
            for request in list(self._live):
                self._forget(request)
            if self.died:
                error = EngineError(f"engine llama_cpp failed: {self.died}", fatal=True)
                self._tell(News(failures=[(request, error) for request in list(self._live)]))
            self._live.clear()

    def _obey(self) -> bool:
        """Take in what was asked for, waiting while there is nothing else to do; False to end."""
        waits = not self.scheduler.has_work
        while True:
            try:
                command = self._commands.get(block=waits)
            except Empty:
                return True
            waits = False
            if command is None:
                return False
            add, request = command
            if add:
                self._live[request] = None
                self.scheduler.add(request)
            elif request in self._live:
                self._forget(request)
                del self._live[request]

    def _step(self) -> None:
        scheduler, context = self.scheduler, self._context
        begin = time.perf_counter()
        step = scheduler.plan()
        for slot in step.freed:
            context.forget(slot)
        for source, target, tokens in step.shared:
            context.share(source, target, tokens)
        if not step.parts:
            if scheduler.running or (scheduler.waiting_live and not step.freed):
                raise NativeError("there is work and none of it can be scheduled")
            return
        context.begin()
        rows = [
            context.add(
                part.sequence.slot,
                part.start,
                part.sequence.tokens[part.start : part.start + part.count],
                part.last,
            )
            for part in step.parts
        ]
        if context.decode() == NO_ROOM:
            self._make_room(step)
            return
        news = News()
        for part, row in zip(step.parts, rows, strict=True):
            if part.last:
                self._next(part, row, news)
        self._count(step, time.perf_counter() - begin)
        self._tell(news)

    def _make_room(self, step: Step) -> None:
        """The cache was fuller than counted: put one back, or give up the only one there is."""
        scheduler = self.scheduler
        scheduler.undo(step)
        if not scheduler.preempt_last():
            request = step.parts[0].sequence.request
            self._forget(request)
            self._live.pop(request, None)
            self._tell(News(failures=[(request, EngineError("llama.cpp found no room in its KV cache"))]))

    def _next(self, part: Part, row: int, news: News) -> None:
        """Draw the next token of a sequence."""
        sequence = part.sequence
        request = sequence.request
        sampling = request.call.sampling
        raw = self._context.logits(row)
        token = self._chooser(sequence).choose(raw, self._candidates, sequence.closed)
        positions: tuple[Position, ...] = ()
        if sampling.logprobs is not None and token >= 0:
            positions = (position(self._model, raw, token, sampling.logprobs),)
        first = len(sequence.tokens) == sequence.prompt_len
        news.deltas.append((request, sequence.add(token, positions)))
        self.stats.generation_tokens += token >= 0
        if first and sequence.index == 0:
            self.scheduler.follow(request)
        if sequence.finish:
            news.finished.append(sequence.finished())
            self._drop(sequence)
            if all(other.finish for other in request.sequences):
                self._live.pop(request, None)

    def _chooser(self, sequence: LlamaSequence) -> Chooser:
        chooser = sequence.chooser
        if chooser is None:
            call = sequence.request.call
            chooser = sequence.chooser = Chooser(
                self._model,
                call.sampling,
                self._defaults,
                sequence.request.grammar,
                sequence.index,
                call.prompt.token_ids,
                self._window,
            )
        return chooser

    def _forget(self, request: LlamaRequest) -> None:
        for sequence in request.sequences:
            if not sequence.finish:
                self._drop(sequence)

    def _drop(self, sequence: LlamaSequence) -> None:
        self.scheduler.end(sequence)
        if sequence.chooser is not None:
            sequence.chooser.close()
            sequence.chooser = None

    def _count(self, step: Step, seconds: float) -> None:
        stats = self.stats
        stats.prompt_tokens += step.prefill_tokens
        if step.prefill_tokens:
            stats.prefill_seconds += seconds
        if step.decodes:
            stats.decode_seconds += seconds

    def _tell(self, news: News) -> None:
        if self._loop is None or not (news.deltas or news.failures):
            return
        try:
            self._loop.call_soon_threadsafe(self._deliver, news)
        except RuntimeError:  # the loop is closed: nobody is left to hear it
            self._commands.put(None)
