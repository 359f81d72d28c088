"""Admission: what can never fit, who waits and for how long, and that nothing leaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference_node.admission import Admission, AdmissionSettings, Admitted, Need, Waiter
from inference_node.engines.base import EngineInfo
from inference_node.memory import Ledger
from shared.config.schema import InferenceConfig
from shared.errors import Code, LayaError
from tests.support.ports import until


def info(max_seq_len: Any = 1000) -> Any:
    return EngineInfo("sim", "m", "", max_seq_len, "", 16, 100, 8, 256)


def admission(
    clock: Any,
    blocks: Any = 100,
    queued: Any = 10,
    seconds: Any = 2.0,
    prefill: Any = 500,
    sequences: Any = 8,
    **more: Any,
) -> Any:
    more.setdefault("max_queued_tokens", 1_000_000)
    settings = AdmissionSettings(queued, seconds, prefill, sequences, **more)
    return Admission(Ledger(blocks, 16), info(), settings, clock)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def live():
    return admission(asyncio.get_running_loop().time)


def need(prompt: Any = 100, new: Any = 60, n: Any = 1) -> Any:
    return Need([prompt], new, n)


def never(_):
    raise AssertionError("settled")


def test_what_fits_is_admitted_at_once_with_whole_blocks(clock):
    adm = admission(clock)
    got = adm.submit(need(100, 61, n=2), 0, None, never)
    assert isinstance(got, Admitted) and got.blocks == 22
    assert (adm.running, adm.sequences, adm.queued_prefill_tokens) == (1, 2, 100)
    got.prefill_done()
    got.prefill_done()
    assert adm.queued_prefill_tokens == 0
    got.release()
    got.release()
    assert (adm.running, adm.sequences, adm.ledger.held_blocks) == (0, 0, 0)


def test_each_prompt_of_a_batch_is_held(clock):
    got = admission(clock).submit(Need([16, 17], 16, 2), 0, None, never)
    assert isinstance(got, Admitted) and got.blocks == 2 * 2 + 2 * 3


def test_beyond_the_context_is_refused_with_both_numbers(clock):
    with pytest.raises(LayaError, match=r"900 tokens .* 200 more; the context is 1000") as e:
        admission(clock).submit(need(900, 200), 0, None, never)
    assert (e.value.code, e.value.reason, e.value.param) == (Code.INVALID_ARGUMENT, "CONTEXT_TOO_LONG", "max_tokens")
    with pytest.raises(LayaError, match="1001 tokens") as e:
        admission(clock).submit(need(1001, 1), 0, None, never)
    assert e.value.param == "prompt"


def test_what_the_whole_cache_cannot_hold_is_refused_with_both_numbers(clock):
    with pytest.raises(LayaError, match=r"needs 3200 tokens .* 4 sequences; this node has 1600") as e:
        admission(clock).submit(need(400, 400, n=4), 0, None, never)
    assert (e.value.code, e.value.reason) == (Code.INVALID_ARGUMENT, "NEVER_FITS")


async def test_a_waiting_request_is_admitted_when_room_comes_free(live):
    first = await live.admit(need(400, 600))
    second = asyncio.create_task(live.admit(need(400, 600)))
    await until(lambda: live.waiting == 1, "the second waits")
    assert live.queued_prefill_tokens == 800
    first.release()
    (await second).release()
    assert (live.waiting, live.running, live.queued_prefill_tokens) == (0, 0, 0)


def settle_into(log: Any, name: Any) -> Any:
    return lambda outcome: log.append((name, outcome))


def test_waiters_go_by_priority_then_in_order_of_arrival(clock):
    adm = admission(clock, prefill=100)
    running = adm.submit(need(), 0, None, never)
    log: list[Any] = []
    for name, priority in (("a", 0), ("b", 0), ("low", 5), ("high", -5)):
        adm.submit(need(), priority, None, settle_into(log, name))
    while adm.running:
        assert isinstance(running, Admitted)
        running.release()
        if log:
            running = log[-1][1]
    assert [name for name, _ in log] == ["high", "a", "b", "low"]


def test_a_higher_priority_that_fits_does_not_wait_behind_a_large_request(clock):
    adm = admission(clock, blocks=60)
    adm.submit(need(16, 484), 0, None, never)
    log: list[Any] = []
    adm.submit(need(100, 700), 0, None, settle_into(log, "large"))
    adm.submit(need(16, 16), 0, None, settle_into(log, "small"))
    assert log == []
    assert isinstance(adm.submit(need(16, 16), -1, None, never), Admitted)
    assert log == []


def test_prefill_tokens_in_flight_are_capped_but_one_alone_may_be_above(clock):
    adm = admission(clock, prefill=300)
    big = adm.submit(need(400, 16), 0, None, never)
    log: list[Any] = []
    adm.submit(need(10, 16), 0, None, settle_into(log, "next"))
    assert log == [] and isinstance(big, Admitted)
    big.prefill_done()
    assert len(log) == 1


def test_no_more_sequences_than_the_engine_runs(clock):
    adm = admission(clock, sequences=4)
    first = adm.submit(need(16, 16, n=3), 0, None, never)
    log: list[Any] = []
    adm.submit(need(16, 16, n=2), 0, None, settle_into(log, "x"))
    assert not log and isinstance(first, Admitted)
    first.release()
    assert len(log) == 1


def test_a_full_queue_refuses_with_a_hint(clock):
    adm = admission(clock, queued=1, prefill=100)
    adm.submit(need(), 0, None, never)
    adm.submit(need(), 0, None, never)
    with pytest.raises(LayaError, match="1 requests wait already") as e:
        adm.submit(need(), 0, None, never)
    assert (e.value.code, e.value.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert e.value.retry_after is not None and 0.1 <= e.value.retry_after <= 30


def test_the_hint_follows_the_rate_at_which_room_comes_free_also_after_idle_hours(clock):
    adm = admission(clock, blocks=10, queued=1, prefill=100_000)
    for _ in range(400):
        got = adm.submit(need(16, 64), 0, None, never)
        assert isinstance(got, Admitted)
        clock.now += 0.1
        got.prefill_done()
        got.release()
        clock.now += 1.0
    clock.now += 7200
    adm.submit(need(16, 144), 0, None, never)
    adm.submit(need(16, 64), 0, None, never)
    with pytest.raises(LayaError) as e:
        adm.submit(need(16, 64), 0, None, never)
    # Ten blocks in use, each kept for 0.1 s: the 5 that wait and the 5 asked for are free in that time.
    assert e.value.retry_after == pytest.approx(0.1, rel=0.01)
    assert adm.wait_estimate(adm.short, need(16, 304), 20) == pytest.approx(0.25, rel=0.01)


def test_who_could_not_be_served_in_time_is_refused_at_once_with_the_wait(clock):
    adm = admission(clock, blocks=10)
    held = adm.submit(need(16, 144), 0, None, never)
    clock.now += 60.0
    held.release()
    adm.submit(need(16, 144), 0, None, never)
    assert isinstance(adm.submit(need(16, 144), 0, None, never), Waiter)
    with pytest.raises(LayaError, match=r"room in about 120\.0 s, and a request may wait 2\.0 s") as e:
        adm.submit(need(16, 144), 0, None, never)
    assert (e.value.reason, e.value.retry_after) == ("QUEUE_FULL", 30.0)


def test_expire_refuses_those_past_their_wait_and_says_when_to_come_again(clock):
    adm = admission(clock, prefill=100)
    adm.submit(need(), 0, None, never)
    log: list[Any] = []
    adm.submit(need(), 0, None, settle_into(log, "queue"))
    adm.submit(need(), 0, clock.now + 1.0, settle_into(log, "deadline"))
    assert adm.expire(clock.now) == clock.now + 1.0
    clock.now += 1.0
    assert adm.expire(clock.now) == clock.now + 1.0
    clock.now += 1.0
    assert adm.expire(clock.now) is None
    (one, first), (two, second) = log
    assert (one, first.code, first.reason) == ("deadline", Code.DEADLINE_EXCEEDED, "DEADLINE")
    assert (two, second.code, second.reason) == ("queue", Code.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT")
    assert adm.waiting == adm.waiting_prefill_tokens == 0


async def test_the_wait_is_bounded_without_anybody_calling_expire():
    adm = admission(asyncio.get_running_loop().time, prefill=100, seconds=0.02)
    await adm.admit(need())
    with pytest.raises(LayaError, match="within 0.0 s") as e:
        await adm.admit(need())
    assert e.value.reason == "QUEUE_TIMEOUT"


async def test_a_cancelled_wait_leaves_no_place_and_lets_the_next_in(live):
    running = await live.admit(need(400, 200))
    large = asyncio.create_task(live.admit(need(400, 600)))
    await until(lambda: live.waiting == 1, "the large one waits")
    small = asyncio.create_task(live.admit(need(16, 16)))
    await until(lambda: live.waiting == 2, "the small one waits behind it")
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    (await small).release()
    running.release()
    assert (live.waiting, live.ledger.held_blocks, live.prefill_in_flight) == (0, 0, 0)


async def test_a_task_cancelled_in_the_moment_of_its_grant_leaks_no_hold(live):
    running = await live.admit(need(400, 600))
    task = asyncio.create_task(live.admit(need(400, 600)))
    await until(lambda: live.waiting == 1, "it waits")
    running.release()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (live.running, live.ledger.held_blocks, live.sequences) == (0, 0, 0)


async def test_closed_admission_takes_nothing_new_but_serves_who_waits(live):
    running = await live.admit(need(400, 600))
    waiting = asyncio.create_task(live.admit(need(400, 600)))
    await until(lambda: live.waiting == 1, "it waits")
    live.close("drain", "the node is draining")
    with pytest.raises(LayaError, match="the node is draining") as e:
        await live.admit(need())
    assert (e.value.code, e.value.reason) == (Code.UNAVAILABLE, "DRAINING")
    running.release()
    (await waiting).release()
    await asyncio.wait_for(live.wait_idle(), 1)
    live.reopen("drain")
    (await live.admit(need())).release()


async def test_each_closing_is_withdrawn_by_its_owner(live):
    live.close("guard", "memory is short")
    live.close("drain", "the node is draining")
    assert live.closed_reason == "memory is short"
    live.reopen("guard")
    assert live.closed_reason == "the node is draining"


async def test_idle_means_nothing_runs_and_nothing_waits(live):
    got = await live.admit(need())
    idle = asyncio.create_task(live.wait_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    got.release()
    await asyncio.wait_for(idle, 1)


def test_zero_settings_take_the_engines_figures():
    settings = AdmissionSettings.of(InferenceConfig(), info())
    assert (settings.max_prefill_tokens, settings.max_sequences, settings.long_prompt_tokens) == (512, 8, 256)
    own = AdmissionSettings.of(InferenceConfig(max_prefill_tokens=7, long_prompt_tokens=3), info())
    assert (own.max_prefill_tokens, own.long_prompt_tokens) == (7, 3)


def test_cancelled_waiters_do_not_pile_up(clock):
    adm = admission(clock, queued=1000, prefill=100)
    adm.submit(need(), 0, None, never)
    for _ in range(500):
        waiter = adm.submit(need(), 0, None, never)
        assert isinstance(waiter, Waiter)
        waiter.cancel()
    assert adm.waiting == 0 and len(adm.short) <= 65


class AdmissionMachine(RuleBasedStateMachine):
    """Requests come, get their first token, end, give up and time out in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.adm = admission(self.clock, blocks=40, queued=5, prefill=300, sequences=4, long_prompt_tokens=120)
        self.live: list[tuple[Admitted, Need]] = []
        self.prefilling: set[int] = set()
        self.waiting: list[tuple[Waiter, Need]] = []

    def got(self, admitted: Admitted, need: Need) -> None:
        self.live.append((admitted, need))
        self.prefilling.add(id(admitted))

    @rule(prompt=st.integers(1, 500), new=st.integers(1, 300), n=st.integers(1, 5), priority=st.integers(-2, 2))
    def submit(self, prompt: int, new: int, n: int, priority: int) -> None:
        need = Need([prompt], new, n)
        entry: list[Waiter] = []

        def settle(outcome: Admitted | LayaError) -> None:
            self.waiting = [w for w in self.waiting if w[0] not in entry]
            if isinstance(outcome, Admitted):
                self.got(outcome, need)
            entry.append(None)  # type: ignore[arg-type]

        try:
            result = self.adm.submit(need, priority, None, settle)
        except LayaError as e:
            assert e.reason in ("NEVER_FITS", "QUEUE_FULL")
            return
        if isinstance(result, Admitted):
            self.got(result, need)
        elif not entry:
            entry.append(result)
            self.waiting.append((result, need))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), first=st.booleans())
    def progress(self, data: st.DataObject, first: bool) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        admitted, _ = self.live[index]
        self.prefilling.discard(id(admitted))
        if first:
            admitted.prefill_done()
        else:
            self.live.pop(index)
            admitted.release()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        waiter, _ = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        waiter.cancel()

    @rule(seconds=st.floats(0, 1.5))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.adm.expire(self.clock.now)

    @invariant()
    def counts_agree_with_what_is_alive(self) -> None:
        adm = self.adm
        assert adm.running == len(self.live)
        assert adm.waiting == len(self.waiting)
        assert adm.ledger.held_blocks == sum(a.blocks for a, _ in self.live) <= 40
        assert adm.sequences == sum(n.sequences for _, n in self.live)
        assert adm.prefill_in_flight == sum(n.prefill_tokens for a, n in self.live if id(a) in self.prefilling)
        assert adm.waiting_prefill_tokens == sum(n.prefill_tokens for _, n in self.waiting)
        assert len(self.live) <= 1 or adm.sequences <= 4
        for lane in adm.lanes:
            waiting = [w for w, _ in self.waiting if w.lane is lane]
            assert (lane.waiting, lane.tokens) == (len(waiting), sum(w.need.prefill_tokens for w in waiting))
            assert (lane.blocks, lane.sequences) == (
                sum(w.blocks for w in waiting),
                sum(w.need.sequences for w in waiting),
            )

    @invariant()
    def each_lane_keeps_its_budget_unless_one_is_alone_in_it(self) -> None:
        for lane, budget in ((self.adm.short, 300), (self.adm.long, 150)):
            mine = [
                n.prefill_tokens
                for a, n in self.live
                if id(a) in self.prefilling and (n.prefill_tokens > 120) == (lane is self.adm.long)
            ]
            assert lane.prefill == sum(mine)
            assert lane.prefill <= budget or len(mine) == 1

    @invariant()
    def nobody_is_passed_for_more_than_it_asks_for(self) -> None:
        for waiter, need in self.waiting:
            assert waiter.passed_blocks <= waiter.blocks
            assert waiter.passed_sequences <= need.sequences

    @invariant()
    def nobody_waits_who_could_run(self) -> None:
        assert self.adm._next() is None

    @invariant()
    def nobody_waits_beside_an_idle_engine(self) -> None:
        assert self.live or not self.waiting


TestAdmissionMachine = AdmissionMachine.TestCase
