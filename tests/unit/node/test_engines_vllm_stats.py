"""What is counted of vLLM's steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from inference_node.engines.base import Finished
from inference_node.engines.vllm_stats import StatsCollector, exposition


def scheduler(running: int = 0, waiting: int = 0, context: int = 0, decode: int = 0, **extra: Any) -> SimpleNamespace:
    values = {
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_skipped_waiting_reqs": 0,
        "kv_cache_usage": 0.25,
        "prefix_cache_stats": SimpleNamespace(queries=0, hits=0),
        "iteration_details": SimpleNamespace(num_ctx_tokens=context, num_generation_tokens=decode),
    }
    return SimpleNamespace(**(values | extra))


def iteration(tokens: int, preempted: int = 0) -> SimpleNamespace:
    return SimpleNamespace(num_generation_tokens=tokens, num_preempted_reqs=preempted)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steps_are_counted() -> None:
    stats = StatsCollector()
    stats.record(scheduler(1, context=100, prefix_cache_stats=SimpleNamespace(queries=150, hits=50)), iteration(1))
    stats.record(scheduler(1, 2, decode=1, num_skipped_waiting_reqs=1), iteration(1, preempted=1))
    now = stats.read(4)
    assert (now.prompt_tokens, now.generation_tokens, now.preemptions) == (100, 2, 1)
    assert (now.prefix_queries, now.prefix_hits) == (150, 50)
    assert (now.running, now.waiting) == (1, 3)
    assert now.kv_usage == 0.25


def test_time_goes_to_what_a_step_did() -> None:
    clock = Clock()
    stats = StatsCollector(clock)
    clock.now += 50  # idle time is nobody's
    stats.arrived()
    clock.now += 2
    stats.record(scheduler(1, context=10), iteration(1))
    clock.now += 1
    stats.record(scheduler(2, decode=1), iteration(1))
    clock.now += 4
    stats.record(scheduler(2, context=5, decode=1), iteration(2))
    now = stats.read(2)
    assert now.prefill_seconds == 6
    assert now.decode_seconds == 5


def test_arrival_in_a_busy_engine_does_not_restart_its_step() -> None:
    clock = Clock()
    stats = StatsCollector(clock)
    stats.arrived()
    clock.now += 1
    stats.arrived()
    clock.now += 1
    stats.record(scheduler(1, context=10), iteration(1))
    assert stats.read(1).prefill_seconds == 2


def test_gauges_of_an_idle_engine_are_zero_though_the_last_step_said_otherwise() -> None:
    stats = StatsCollector()
    stats.record(scheduler(3, decode=3), iteration(3))
    now = stats.read(0)
    assert (now.running, now.waiting, now.kv_usage) == (0, 0, 0.0)


def test_request_that_no_step_has_seen_is_waiting() -> None:
    assert StatsCollector().read(2).waiting == 2


def test_step_without_scheduler_statistics_still_counts_its_tokens() -> None:
    stats = StatsCollector()
    stats.record(None, iteration(5))
    stats.record(scheduler(iteration_details=None), None)
    assert stats.read(0).generation_tokens == 5


def test_warm_up_can_be_forgotten() -> None:
    stats = StatsCollector()
    stats.record(scheduler(1, context=10), iteration(1))
    stats.forget()
    now = stats.read(0)
    assert (now.prompt_tokens, now.generation_tokens, now.prefill_seconds) == (0, 0, 0.0)


def test_only_vllms_own_metrics_are_shown() -> None:
    registry = CollectorRegistry()
    Counter("vllm:steps", "Steps.", registry=registry).inc()
    Counter("process_things", "Things.", registry=registry).inc()
    text = exposition(registry)
    assert "vllm:steps_total 1.0" in text
    assert "process_things" not in text


def test_sequences_that_end_by_themselves_are_told_of() -> None:
    stats, told = StatsCollector(), []
    ends = [
        SimpleNamespace(finish_reason=reason, num_prompt_tokens=7, max_tokens_param=asked, num_generation_tokens=3)
        for reason, asked in (("stop", 10), ("abort", 11), ("length", 3), ("error", 12), ("stop", None))
    ]
    step = SimpleNamespace(num_generation_tokens=1, num_preempted_reqs=0, finished_requests=ends)
    stats.record(scheduler(1), step)
    assert told == []
    stats.on_finished = told.append
    stats.record(scheduler(1), step)
    assert told == [Finished(7, 10, 3), Finished(7, 3, 3)]


def test_what_vllm_says_of_an_end_is_understood() -> None:
    metrics = pytest.importorskip("vllm.v1.metrics.stats")
    engine = pytest.importorskip("vllm.v1.engine")
    stats, told = StatsCollector(), []
    stats.on_finished = told.append
    step = metrics.IterationStats()
    for reason in engine.FinishReason:
        step.finished_requests.append(
            metrics.FinishedRequestStats(
                finish_reason=reason, num_prompt_tokens=7, num_generation_tokens=3, max_tokens_param=10
            )
        )
    stats.record(scheduler(1), step)
    by_itself = {engine.FinishReason.STOP, engine.FinishReason.LENGTH, engine.FinishReason.REPETITION}
    assert told == [Finished(7, 10, 3)] * len(by_itself)
