"""What vLLM's engine core says after each step, kept as counters and gauges.

vLLM calls ``record`` on the event loop for every step that had something to do. It says nothing when an abort leaves
it idle, so its gauges may be stale; how many requests are open is asked of the front end, which always knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from inference_node.engines.base import EngineStats, Finished

_BY_ITSELF = ("stop", "length", "repetition")


class StatsCollector:
    """One of vLLM's statistics loggers; it needs no base class of vLLM's, only these methods."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stats = EngineStats()
        self._last = 0.0  # when the last step ended, or work came to an idle engine
        self._busy = False
        self.steps = 0
        self.on_finished: Callable[[Finished], None] | None = None

    def arrived(self) -> None:
        """A request goes to the engine: the time of an idle engine's next step starts now."""
        if not self._busy:
            self._busy = True
            self._last = self._clock()

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Count one step. The signature is vLLM's."""
        stats = self._stats
        if iteration_stats is not None:
            stats.generation_tokens += iteration_stats.num_generation_tokens
            stats.preemptions += iteration_stats.num_preempted_reqs
            if self.on_finished is not None:
                self._tell(iteration_stats.finished_requests, self.on_finished)
        if scheduler_stats is None:
            return
        self.steps += 1
        stats.running = scheduler_stats.num_running_reqs
        stats.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        stats.kv_usage = scheduler_stats.kv_cache_usage
        stats.prefix_queries += scheduler_stats.prefix_cache_stats.queries
        stats.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        self._count_time(scheduler_stats.iteration_details)

    def _count_time(self, details: Any) -> None:
        """A step that did both prefill and decode counts for both."""
        now = self._clock()
        spent, self._last = now - self._last, now
        self._busy = bool(self._stats.running or self._stats.waiting)
        if details is None:
            return
        self._stats.prompt_tokens += details.num_ctx_tokens
        if details.num_ctx_tokens:
            self._stats.prefill_seconds += spent
        if details.num_generation_tokens:
            self._stats.decode_seconds += spent

    def _tell(self, ended: Iterable[Any], listener: Callable[[Finished], None]) -> None:
        for end in ended:
            if end.max_tokens_param and str(end.finish_reason) in _BY_ITSELF:
                listener(Finished(end.num_prompt_tokens, end.max_tokens_param, end.num_generation_tokens))

    def log_engine_initialized(self) -> None:
        """Part of vLLM's interface; nothing to say."""

    def log(self) -> None:
        """Part of vLLM's interface; nothing to say."""

    def forget(self) -> None:
        """Start all counters again, after the warm-up."""
        self._stats = EngineStats()
        self._busy = False

    def read(self, unfinished: int) -> EngineStats:
        """Counters and gauges now; ``unfinished`` requests are open in the front end, each of an n counted."""
        now = self._stats
        running = min(now.running, unfinished)
        idle = unfinished == 0
        return EngineStats(
            running=running,
            waiting=unfinished - running,
            kv_usage=0.0 if idle else now.kv_usage,
            preemptions=now.preemptions,
            prompt_tokens=now.prompt_tokens,
            generation_tokens=now.generation_tokens,
            prefix_queries=now.prefix_queries,
            prefix_hits=now.prefix_hits,
            prefill_seconds=now.prefill_seconds,
            decode_seconds=now.decode_seconds,
            extra={"steps": float(self.steps), "core_running": float(now.running)},
        )


class _OwnMetrics:
    """A registry's view on the metrics whose names begin with ``vllm:``."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Any]:
        """The metrics, as prometheus_client wants them."""
        return (metric for metric in self._registry.collect() if metric.name.startswith("vllm:"))


def exposition(registry: Any) -> str:
    """vLLM's own metrics in Prometheus's text format."""
    from prometheus_client import generate_latest

    return generate_latest(_OwnMetrics(registry)).decode()
