"""Admission and a simulated engine step by step, on a clock of their own: what lanes do to first tokens under overload.

Three times the prompt tokens that the engine can prefill, short and long prompts mixed; the same arrivals each time.
"""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from inference_node.admission import Admission, AdmissionSettings, Admitted, Need
from inference_node.engines.base import EngineInfo, GenerateCall, Prompt, Sampling
from inference_node.engines.sim_kv import BlockPool
from inference_node.engines.sim_scheduler import Costs, Scheduler
from inference_node.engines.sim_sequence import SimRequest
from inference_node.limits import long_prefill_threshold
from inference_node.memory import Ledger
from shared.errors import Code, LayaError

RATE, STEP, BLOCKS, SEQUENCES = 4000.0, 256, 2000, 32
SECONDS, SHORT, LONG = 60.0, 60, 3000


class Site:
    """One node's admission over the simulator's scheduler, with time that only work takes."""

    def __init__(self, long_prompt_tokens: int, threshold: int) -> None:
        self.now = 0.0
        self.engine = Scheduler(Costs(RATE, 0.005, 0.0001, STEP, SEQUENCES, threshold), BlockPool(BLOCKS, False), 16)
        info = EngineInfo("sim", "m", "", 16_384, "", 16, BLOCKS, SEQUENCES, STEP)
        settings = AdmissionSettings(
            256, 2.0, 2 * STEP, SEQUENCES, long_prompt_tokens=long_prompt_tokens, queue_prefill_seconds=0.25
        )
        self.admission = Admission(Ledger(BLOCKS, 16), info, settings, lambda: self.now)
        self.admission.waits.measure(lambda: RATE)
        self.running: dict[SimRequest, tuple[Admitted, float, int]] = {}
        self.first: dict[int, list[float]] = {}
        self.refused: list[LayaError] = []
        self.waits: list[float] = []

    def ask(self, prompt: int, new: int) -> None:
        asked = self.now

        def settle(outcome: Admitted | LayaError) -> None:
            if isinstance(outcome, Admitted):
                self.begin(outcome, prompt, new, asked)
            else:
                self.refused.append(outcome)

        try:
            got = self.admission.submit(Need([prompt], new), 0, None, settle)
        except LayaError as e:
            self.refused.append(e)
            return
        if isinstance(got, Admitted):
            self.begin(got, prompt, new, asked)

    def begin(self, admitted: Admitted, prompt: int, new: int, asked: float) -> None:
        self.waits.append(self.now - asked)
        call = GenerateCall("r", Prompt([100] * prompt), Sampling(new, ignore_eos=True))
        request = SimRequest(call, len(self.waits), 16_384)
        self.running[request] = (admitted, asked, prompt)
        self.engine.add(request)

    def step(self) -> None:
        step = self.engine.plan()
        self.now += step.seconds
        for request in self.engine.finish(step):
            admitted, asked, prompt = self.running[request]
            if len(request.sequences[0].tokens) == prompt + 1:
                self.first.setdefault(prompt, []).append(self.now - asked)
                admitted.prefill_done()
            if request.live == 0:
                del self.running[request]
                admitted.release()

    def run(self, arrivals: list[tuple[float, int, int]]) -> None:
        heapq.heapify(arrivals)
        while arrivals or self.engine.has_work:
            while arrivals and arrivals[0][0] <= self.now:
                self.ask(*heapq.heappop(arrivals)[1:])
            self.admission.expire(self.now)
            if self.engine.has_work:
                self.step()
            elif arrivals:
                self.now = max(self.now, arrivals[0][0])


def mixed(short: float, long: float) -> list[tuple[float, int, int]]:
    """Short and long prompts worth so much of what the engine can prefill."""
    draw = random.Random(11)
    out: list[tuple[float, int, int]] = []
    for prompt, share in ((SHORT, short), (LONG, long)):
        at = 0.0
        while (at := at + draw.expovariate(share * RATE / prompt)) < SECONDS:
            out.append((at, prompt, 16))
    return out


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def played(arrivals: list[tuple[float, int, int]], lanes: bool = True, match: bool = True) -> Site:
    site = Site(STEP if lanes else 1 << 30, long_prefill_threshold(0, STEP) if match else 0)
    site.run(arrivals)
    return site


@pytest.fixture(scope="module")
def sites() -> Any:
    """Shorts that stay within their half of the engine; with lanes, and with one queue for all."""
    return played(mixed(0.3, 2.7)), played(mixed(0.3, 2.7), lanes=False, match=False)


def test_short_prompts_get_their_first_token_in_a_third_of_the_time_and_none_is_refused(sites):
    lanes, without = sites
    offered = sum(prompt == SHORT for _, prompt, _ in mixed(0.3, 2.7))
    assert p99(lanes.first[SHORT]) < p99(without.first[SHORT]) / 3
    assert len(lanes.first[SHORT]) >= 0.99 * offered > len(without.first[SHORT])


def test_throughput_is_none_the_worse_for_it(sites):
    lanes, without = sites
    assert lanes.engine.stats.prompt_tokens >= 0.97 * without.engine.stats.prompt_tokens
    assert lanes.now < SECONDS + 5


def test_lanes_need_an_engine_that_leaves_room_beside_a_long_prompt(sites):
    unmatched = played(mixed(0.3, 2.7), match=False)
    assert p99(unmatched.first[SHORT]) > 3 * p99(sites[0].first[SHORT])


def test_more_short_prompts_than_their_share_wait_a_bounded_time_all_the_same():
    crowded, one_queue = played(mixed(0.8, 2.2)), played(mixed(0.8, 2.2), lanes=False, match=False)
    assert p99(crowded.first[SHORT]) < 0.75 * p99(one_queue.first[SHORT])
    assert len(crowded.first[LONG]) > 2 * len(one_queue.first[LONG]), "and leave the long ones theirs"
    assert crowded.engine.stats.prompt_tokens > one_queue.engine.stats.prompt_tokens


def test_nothing_is_preempted_and_every_refusal_is_typed_with_a_hint(sites):
    for site in sites:
        assert site.engine.preemptions == 0
        assert site.refused
        for error in site.refused:
            assert error.code is Code.RESOURCE_EXHAUSTED and error.reason in ("QUEUE_FULL", "QUEUE_TIMEOUT")
            assert 0.1 <= error.retry_after <= 30
        assert max(site.waits) <= 2.0 + 0.2
        assert (site.admission.running, site.admission.waiting, site.admission.prefill_in_flight) == (0, 0, 0)
