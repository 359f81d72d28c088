"""Continuous batching of llama_cpp: who is in a step, and that the cells are never over."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines.base import GenerateCall, Prompt, Sampling
from inference_node.engines.llama_cpp_scheduler import Limits, Scheduler, Step
from inference_node.engines.llama_cpp_sequence import LlamaRequest
from tests.unit.node.test_engines_llama_cpp_sequence import Letters


def request(prompt: int, max_tokens: int = 8, n: int = 1, priority: int = 0) -> LlamaRequest:
    call = GenerateCall("r", Prompt([65] * prompt), Sampling(max_tokens=max_tokens, n=n), priority)
    return LlamaRequest(call, "", Letters(), 1000)


def scheduler(**limits: Any) -> Scheduler:
    return Scheduler(Limits(**{"step_tokens": 16, "sequences": 4, "cells": 256, **limits}))


def finish(found: Scheduler, step: Step) -> None:
    """Draw a token for each sequence that is ready for one."""
    for part in step.parts:
        if part.last:
            sequence = part.sequence
            first = len(sequence.tokens) == sequence.prompt_len
            sequence.add(66)
            if first and sequence.index == 0:
                found.follow(sequence.request)
            if sequence.finish:
                found.end(sequence)


def counts(step: Step) -> list[int]:
    return [part.count for part in step.parts]


def test_a_lone_prompt_takes_whole_steps_and_is_drawn_from_at_its_end() -> None:
    found = scheduler()
    found.add(request(20))
    step = found.plan()
    assert counts(step) == [16] and not step.parts[0].last
    step = found.plan()
    assert counts(step) == [4] and step.parts[0].last and step.parts[0].start == 16


def test_what_decodes_goes_on_beside_a_prompt_that_is_read_in_chunks() -> None:
    found = scheduler(long_prefill_tokens=8)
    found.add(request(2))
    finish(found, found.plan())
    found.add(request(30))
    step = found.plan()
    assert counts(step) == [1, 8]
    assert (step.decodes, step.prefill_tokens) == (1, 8)
    finish(found, step)
    assert counts(found.plan()) == [1, 8]


def test_priority_then_arrival_decides_who_starts() -> None:
    found = scheduler(sequences=2)
    late, early, urgent = request(2), request(2), request(2, priority=-1)
    for each in (early, late, urgent):
        found.add(each)
    assert [part.sequence.request for part in found.plan().parts] == [urgent, early]


def test_the_answers_of_one_request_share_its_prompt() -> None:
    found = scheduler()
    found.add(request(10, n=3))
    finish(found, found.plan())
    step = found.plan()
    assert [tokens for _, _, tokens in step.shared] == [9, 9]
    assert counts(step) == [1, 1, 1]
    assert len({part.sequence.slot for part in step.parts}) == 3


def test_a_model_that_cannot_share_reads_the_prompt_for_each() -> None:
    found = scheduler(shares_prompts=False)
    found.add(request(4, n=2))
    step = found.plan()
    assert counts(step) == [4, 4] and not step.shared


def test_who_is_ended_is_out_of_the_next_step_and_its_slot_is_cleared() -> None:
    found = scheduler()
    first, second = request(2), request(2)
    found.add(first)
    found.add(second)
    step = found.plan()
    finish(found, step)
    slot = first.sequences[0].slot
    found.end(first.sequences[0])
    found.end(first.sequences[0])
    step = found.plan()
    assert step.freed == [slot]
    assert [part.sequence.request for part in step.parts] == [second]
    waiting = request(2)
    found.add(waiting)
    found.end(waiting.sequences[0])
    assert found.waiting_live == 0
    found.end(second.sequences[0])
    assert found.plan().parts == [] and not found.has_work and found.used == 0


def test_over_commitment_puts_the_last_one_back_and_finishes_both() -> None:
    found = scheduler(cells=20)
    both = [request(4, max_tokens=12), request(4, max_tokens=12)]
    for each in both:
        found.add(each)
    for _ in range(100):
        if not found.has_work:
            break
        finish(found, found.plan())
    assert [s.finish for each in both for s in each.sequences] == ["length", "length"]
    assert found.preemptions >= 1 and found.used == 0


def test_a_step_that_was_not_computed_is_taken_back() -> None:
    found = scheduler()
    one, two = request(4), request(6)
    found.add(one)
    found.add(two)
    step = found.plan()
    found.undo(step)
    assert found.used == 0
    assert found.preempt_last()
    assert [part.sequence.request for part in found.plan().parts] == [one, two]
    found.end(two.sequences[0])
    assert not found.preempt_last()


jobs = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 10), st.integers(1, 3), st.integers(-1, 1), st.booleans()), max_size=12
)


@given(jobs, st.integers(4, 20), st.integers(1, 5), st.integers(40, 120), st.booleans())
def test_cells_and_batch_are_never_over_and_everything_ends(
    jobs: list[tuple[int, int, int, int, bool]], batch: int, sequences: int, cells: int, shares: bool
) -> None:
    found = scheduler(
        step_tokens=max(batch, sequences),
        sequences=sequences,
        cells=cells,
        long_prefill_tokens=4,
        shares_prompts=shares,
    )
    requests = [request(prompt, new, n, priority) for prompt, new, n, priority, _ in jobs]
    held: dict[int, int] = {}
    for each in requests:
        found.add(each)
    for _ in range(5000):
        if not found.has_work:
            break
        step = found.plan()
        for slot in step.freed:
            held.pop(slot, None)
        for source, target, tokens in step.shared:
            assert held[source] >= tokens and target not in held
            held[target] = tokens
        assert sum(counts(step)) <= found.limits.step_tokens
        for part in step.parts:
            assert held.get(part.sequence.slot, 0) == part.start
            held[part.sequence.slot] = part.start + part.count
        assert sum(held.values()) <= cells and len(held) <= sequences
        finish(found, step)
        for each, (*_, aborted) in zip(requests, jobs, strict=True):
            if (
                aborted
                and each.sequences[0].finish == ""
                and len(each.sequences[0].tokens) > each.sequences[0].prompt_len
            ):
                for sequence in each.sequences:
                    found.end(sequence)
    assert not found.has_work and found.used == 0 and found.waiting_live == 0
    for each, (*_, aborted) in zip(requests, jobs, strict=True):
        assert aborted or all(s.finish == "length" for s in each.sequences)
