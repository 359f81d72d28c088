"""The simulator's scheduler: the cost model, batching, prefix hits, priorities, preemption, aborts."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_node.engines import sim_text
from inference_node.engines.base import GenerateCall, Prompt, Sampling
from inference_node.engines.sim_kv import BlockPool
from inference_node.engines.sim_scheduler import Costs, Scheduler
from inference_node.engines.sim_sequence import SimRequest

COSTS = Costs(8000.0, 0.006, 0.00035, 2048, 256)


def scheduler(blocks: Any = 1000, costs: Any = COSTS, keep: Any = True) -> Any:
    return Scheduler(costs, BlockPool(blocks, keep), 16)


def request(
    tokens: Any = 32, new: Any = 4, n: Any = 1, priority: Any = 0, salt: Any = "", base: Any = 0, ignore_eos: Any = True
) -> Any:
    prompt = [sim_text.WORDS_AT + (base + i) % 1024 for i in range(tokens)]
    sampling = Sampling(max_tokens=new, n=n, ignore_eos=ignore_eos)
    return SimRequest(GenerateCall("r", Prompt(prompt), sampling, priority, salt), 0, 4096)


def run(sched: Any, limit: Any = 10_000) -> Any:
    seconds = 0.0
    for _ in range(limit):
        if not sched.has_work:
            return seconds
        step = sched.plan()
        assert step.work
        seconds += step.seconds
        sched.finish(step)
    raise AssertionError("did not end")


def output(req: Any, index: Any = 0) -> Any:
    sequence = req.sequences[index]
    return sequence.tokens[sequence.prompt_len :]


def test_prefill_takes_tokens_over_rate_and_decode_a_base_and_a_share_of_each_sequence():
    sched = scheduler()
    sched.add(request(tokens=800))
    step = sched.plan()
    assert step.seconds == pytest.approx(0.1)
    sched.finish(step)
    sched.add(request(tokens=80, base=500))
    step = sched.plan()
    assert (step.decodes, step.prefill_tokens) == (1, 80)
    assert step.seconds == pytest.approx(0.01 + 0.006 + 0.00035)
    sched.finish(step)
    step = sched.plan()
    assert step.seconds == pytest.approx(0.006 + 2 * 0.00035)


def test_a_long_prompt_is_prefilled_in_chunks_beside_running_decodes():
    sched = scheduler()
    sched.add(request(tokens=16, new=50))
    sched.finish(sched.plan())
    sched.add(request(tokens=3000, base=100))
    step = sched.plan()
    assert (step.decodes, step.prefill_tokens) == (1, 2047)
    sched.finish(step)
    step = sched.plan()
    assert (step.decodes, step.prefill_tokens) == (1, 953)


def test_output_is_what_the_pure_function_says_for_each_of_n():
    sched = scheduler()
    req = request(n=3, new=20)
    sched.add(req)
    run(sched)
    for i in range(3):
        assert output(req, i) == list(islice(sim_text.expected_tokens(req.call.prompt.token_ids, 0, i, True), 20))
    assert req.live == 0
    assert sched.pool.free == 1000


def test_a_repeated_prompt_is_found_in_the_cache_but_for_its_last_token():
    sched = scheduler()
    sched.add(request(tokens=64))
    run(sched)
    again = request(tokens=64)
    sched.add(again)
    step = sched.plan()
    assert step.prefill_tokens == 16
    assert again.sequences[0].cached == 48
    assert (sched.stats.prefix_queries, sched.stats.prefix_hits) == (128, 48)


def test_a_conversation_finds_its_own_answer_in_the_cache():
    sched = scheduler()
    first = request(tokens=32, new=32)
    sched.add(first)
    run(sched)
    tokens = first.sequences[0].tokens
    call = GenerateCall("r2", Prompt([*tokens, *range(65, 75)]), Sampling(max_tokens=1))
    second = SimRequest(call, 0, 4096)
    sched.add(second)
    run(sched)
    assert second.sequences[0].cached == 48


def test_another_salt_finds_nothing():
    sched = scheduler()
    sched.add(request(tokens=64, salt="a"))
    run(sched)
    other = request(tokens=64, salt="b")
    sched.add(other)
    run(sched)
    assert other.sequences[0].cached == 0


def test_n_completions_share_the_prompt():
    sched = scheduler()
    req = request(tokens=160, n=4)
    sched.add(req)
    step = sched.plan()
    assert step.prefill_tokens == 160 + 3 * 16


def test_lower_priority_numbers_go_first_then_arrival():
    sched = scheduler(costs=Costs(8000.0, 0.006, 0.00035, 2048, 1))
    late, second, first = request(priority=5), request(base=1), request(base=2)
    urgent = request(priority=-1, base=3)
    for req in (late, first, second, urgent):
        sched.add(req)
    order = []
    while sched.has_work:
        for req in sched.finish(sched.plan()):
            if req.live == 0:
                order.append(req)
    assert order == [urgent, first, second, late]


def test_no_more_sequences_run_than_allowed():
    sched = scheduler(costs=Costs(8000.0, 0.006, 0.00035, 2048, 2))
    for i in range(5):
        sched.add(request(base=i * 40))
    sched.plan()
    stats = sched.snapshot()
    assert (stats.running, stats.waiting) == (2, 3)


def test_a_full_pool_preempts_the_last_and_loses_no_token():
    sched = scheduler(blocks=8, keep=False)
    requests = [request(tokens=32, new=60, base=i * 50) for i in range(2)]
    for req in requests:
        sched.add(req)
    run(sched)
    assert sched.preemptions > 0
    for req in requests:
        assert output(req) == list(islice(sim_text.expected_tokens(req.call.prompt.token_ids, 0, 0, True), 60))
    assert sched.pool.free == 8


def test_an_abort_frees_blocks_at_once_even_in_the_middle_of_a_step():
    sched = scheduler()
    stay, go = request(new=3), request(base=300, n=2)
    sched.add(stay)
    sched.add(go)
    step = sched.plan()
    sched.abort(go)
    assert sched.finish(step) == [stay]
    assert sched.snapshot().running == 1
    run(sched)
    assert sched.pool.free == 1000


def test_aborted_requests_in_the_queue_do_not_pile_up():
    sched = scheduler(costs=Costs(8000.0, 0.006, 0.00035, 2048, 1))
    sched.add(request(new=1000))
    sched.finish(sched.plan())
    for i in range(500):
        waiting = request(priority=9, base=i)
        sched.add(waiting)
        sched.abort(waiting)
    assert sched.snapshot().waiting == 0
    assert len(sched._waiting) <= 65


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(1, 2), st.integers(-2, 2), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.integers(14, 40),
)
def test_any_load_ends_with_exact_text_and_an_empty_pool(loads, blocks):
    sched = scheduler(blocks=blocks, costs=Costs(8000.0, 0.006, 0.00035, 32, 4))
    requests = []
    for tokens, new, n, priority, base in loads:
        req = request(tokens, new, n, priority, base=base * 100)
        requests.append(req)
        sched.add(req)
    run(sched)
    for req in requests:
        for i, sequence in enumerate(req.sequences):
            new = req.call.sampling.max_tokens
            assert output(req, i) == list(islice(sim_text.expected_tokens(req.call.prompt.token_ids, 0, i, True), new))
            assert sequence.done
    assert sched.pool.free == blocks
    assert sched.snapshot().running == sched.snapshot().waiting == 0
