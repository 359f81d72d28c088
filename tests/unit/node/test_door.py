"""One request's way in and out: counted, timed, and nothing left behind whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inference_node.admission import Need
from inference_node.call import Call
from inference_node.door import EVERY
from shared.errors import LayaError
from tests.support.ports import until
from tests.unit.node.test_drain import parts


def call() -> Any:
    return Call({b"laya-dispatch": b"w-1"}, "r")


def counts(door: Any) -> Any:
    samples = door._metrics.requests.collect()[0].samples
    return {s.labels["outcome"]: s.value for s in samples if s.labels["service"] == "generate" and s.name[-1] == "l"}


async def test_a_visit_is_counted_held_and_let_go():
    _, admission, door, _ = parts()
    async with door.visit("generate", call(), Need([100], 60), 0, door.clock()) as visit:
        assert admission.running == 1 and door.reporter.live("w") == ["w-1"]
        assert admission.queued_prefill_tokens == 100
        visit.first_token()
        visit.first_token()
        assert admission.queued_prefill_tokens == 0 and visit.first_at >= visit.admitted_at
    assert admission.running == 0 and door.reporter.live("w") == [] and not door.visits
    assert counts(door)["ok"] == 1


async def test_the_true_counts_of_a_dispatch_are_told_once_all_its_prompts_have_begun():
    _, _, door, _ = parts()
    watch = door.reporter.open("w")
    async with door.visit("openai", call(), Need([100, 50], 60), 0, door.clock()) as visit:
        await watch.next()
        visit.first_token()  # the first byte of an answer says nothing of what was cached
        visit.prompt_started(64)
        assert not watch._used
        visit.prompt_started(16)
        visit.prompt_started(16)  # beam search asks again
    watch.wake()
    (told,) = (await watch.next()).usages
    assert (told.dispatch, told.prompt_tokens, told.cached_tokens) == ("w-1", 150, 80)


async def test_a_request_without_a_dispatch_tells_nothing():
    _, _, door, _ = parts()
    watch = door.reporter.open("w")
    async with door.visit("openai", Call({}, "r"), Need([100], 60), 0, door.clock()) as visit:
        visit.prompt_started(0)
    assert not (await watch.next()).usages


async def test_an_error_inside_lets_go_too():
    _, admission, door, _ = parts()
    with pytest.raises(ValueError):
        async with door.visit("generate", call(), Need([100], 60), 0, door.clock()):
            raise ValueError
    assert admission.running == admission.prefill_in_flight == 0 and not door.visits
    assert counts(door)["error"] == 1


async def test_a_refusal_is_counted_by_reason_and_never_shown_to_routers():
    _, admission, door, _ = parts()
    with pytest.raises(LayaError):
        async with door.visit("generate", call(), Need([10_000], 60), 0, door.clock()):
            raise AssertionError("entered")
    assert counts(door)["refused"] == 1 and door.reporter.live("w") == [] and admission.running == 0
    assert door._metrics.refusals.labels("CONTEXT_TOO_LONG")._value.get() == 1


async def test_a_cancelled_wait_is_counted_while_it_waits_and_not_after():
    _, admission, door, _ = parts()
    async with door.visit("generate", Call({}, "a"), Need([2000] * 4, 2000), 0, door.clock()):

        async def wait() -> None:
            async with door.visit("generate", call(), Need([60], 60), 0, door.clock()):
                raise AssertionError("entered")

        admission.settings = type(admission.settings)(10, 5.0, 1, 50)
        task = asyncio.create_task(wait())
        await until(lambda: admission.waiting == 1, "it waits")
        assert door.reporter.live("w") == ["w-1"]
        task.cancel()
        await asyncio.wait({task})
        assert admission.waiting == 0 and door.reporter.live("w") == []
    assert counts(door) == {"ok": 1.0, "error": 0.0, "refused": 0.0, "cancelled": 1.0}


async def test_one_request_in_seventeen_has_its_messages_timed():
    _, _, door, _ = parts()
    for _ in range(2 * EVERY):
        async with door.visit("generate", call(), Need([60], 60), 0, door.clock()) as visit:
            visit.first_token()
            if visit.timed:
                visit.serialising += 0.002
    read = door._metrics.registry.get_sample_value
    assert read("laya_node_serialise_seconds_count", {"service": "generate"}) == 2
    assert read("laya_node_serialise_seconds_sum", {"service": "generate"}) == pytest.approx(0.004)


async def test_a_client_may_have_its_messages_timed():
    _, _, door, _ = parts()
    asked = Call({b"laya-timing": b"1"}, "a")
    async with door.visit("generate", asked, Need([60], 60), 0, door.clock()) as visit:
        assert visit.timed
