"""The leaping engine keeps the time of the ``sim`` engine's own scheduler."""

from __future__ import annotations

import random

import pytest

from inference_node.engines.base import GenerateCall, Prompt, Sampling
from inference_node.engines.sim_kv import BlockPool
from inference_node.engines.sim_scheduler import Costs, Scheduler
from inference_node.engines.sim_sequence import SimRequest
from loadtest.sim.engine import LeapEngine, Run
from loadtest.sim.events import Events

BLOCK = 16
COSTS = Costs(8000.0, 0.006, 0.00035, 2048, 8, 1024)
Plan = list[tuple[float, int, int, int]]  # arrival, prompt, new tokens, which head (0: none) of 512 tokens


def plan_of(seed: int, count: int = 40) -> Plan:
    rng = random.Random(seed)
    at = 0.0
    out: Plan = []
    for _ in range(count):
        at += rng.expovariate(6.0)
        prompt = rng.choice([30, 300, 700, 2500, 5000])
        out.append((at, prompt, rng.randrange(1, 60), rng.randrange(4) if prompt > 512 else 0))
    return out


def stepped(plan: Plan, blocks: int) -> tuple[list[float], list[float], int, int]:
    """First tokens, ends, preemptions and prompt tokens computed, by the real scheduler, a step at a time."""
    scheduler = Scheduler(COSTS, BlockPool(blocks), BLOCK)
    requests = []
    for i, (_, prompt, new, head) in enumerate(plan):
        tokens = [1000 + head] * min(prompt, 512) if head else [5000 + i] * min(prompt, 512)
        tokens += [9000 + i] * (prompt - len(tokens))
        call = GenerateCall(f"r{i}", Prompt(tokens, ""), Sampling(max_tokens=new, ignore_eos=True))
        requests.append(SimRequest(call, 0, 131_072))
    first, ended = [-1.0] * len(plan), [-1.0] * len(plan)
    now, due = 0.0, 0
    while min(ended) < 0:
        if not scheduler.has_work:
            now = max(now, plan[due][0])
        while due < len(plan) and plan[due][0] <= now:
            scheduler.add(requests[due])
            due += 1
        step = scheduler.plan()
        now += step.seconds
        # Those who come within the step wait for the next one.
        for request in scheduler.finish(step):
            i = requests.index(request)
            if first[i] < 0:
                first[i] = now
            if not request.live:
                ended[i] = now
    return first, ended, scheduler.preemptions, scheduler.stats.prompt_tokens


def leapt(plan: Plan, blocks: int) -> tuple[list[float], list[float], int, int]:
    """The same by the leaping engine."""
    events = Events()
    engine = LeapEngine(events, COSTS, blocks, BLOCK, 512)
    first, ended = [-1.0] * len(plan), [-1.0] * len(plan)

    def add(i: int) -> None:
        def began() -> None:
            first[i] = events.now

        def done() -> None:
            ended[i] = events.now

        _, prompt, new, head = plan[i]
        whole = prompt // 512
        ids = tuple((head if head else 1000 + i, i if at else 0, at) for at in range(whole))
        engine.add(Run(prompt, new, tuple(map(hash, ids)), began, done))

    for i, (at, *_) in enumerate(plan):
        events.at(at, add, i)
    events.run()
    return first, ended, engine.preemptions, engine.stats.prompt_tokens


@pytest.mark.parametrize("seed", range(6))
def test_leaps_keep_the_time_of_single_steps(seed: int) -> None:
    plan = plan_of(seed)
    first, ended, preemptions, computed = stepped(plan, 8192)
    first_leapt, ended_leapt, preemptions_leapt, computed_leapt = leapt(plan, 8192)
    assert preemptions == preemptions_leapt == 0
    assert computed_leapt == pytest.approx(computed, rel=0.02)
    slack = 0.3  # one step of a full prefill: who comes within a step may be seen a step sooner or later
    for ours, real in zip(first_leapt + ended_leapt, first + ended, strict=True):
        assert ours == pytest.approx(real, abs=slack)
    assert sum(ended_leapt) / len(plan) == pytest.approx(sum(ended) / len(plan), rel=0.02)


def test_engine_without_memory_preempts_as_the_scheduler_does() -> None:
    # Prompts of 30 with 400 new tokens each: all fit at first, and not at the end.
    plan = [(0.0, 30, 400, 0) for _ in range(8)]
    blocks = 8 * 430 // BLOCK * 2 // 3
    *_, preempted, _ = stepped(plan, blocks)
    *_, preempted_leapt, _ = leapt(plan, blocks)
    assert preempted > 0 and preempted_leapt > 0
    assert abs(preempted - preempted_leapt) <= 2


def test_a_cached_head_is_not_computed_again() -> None:
    events = Events()
    engine = LeapEngine(events, COSTS, 1000, BLOCK, 512)
    runs = [Run(1000, 2, (7,), lambda: None, lambda: None) for _ in range(2)]
    events.at(0.0, engine.add, runs[0])
    events.at(1.0, engine.add, runs[1])
    events.run()
    assert [run.cached for run in runs] == [0, 512]
    assert engine.stats.prompt_tokens == 1000 + 488


def test_a_killed_engine_says_nothing_more() -> None:
    events = Events()
    engine = LeapEngine(events, COSTS, 1000, BLOCK, 512)
    said: list[float] = []
    events.at(0.0, engine.add, Run(1000, 50, (), lambda: said.append(events.now), lambda: said.append(events.now)))
    events.at(0.05, engine.kill)
    events.run()
    assert said == [] and engine.running == 0
