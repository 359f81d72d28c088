"""Admission's two lanes, the bounds of its queue, its ramp, and what it does while load is shed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inference_node.admission import Admitted, Waiter
from shared.errors import Code, LayaError
from tests.support.ports import until
from tests.unit.node.test_admission import Clock, admission, need, never, settle_into


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def live():
    return admission(asyncio.get_running_loop().time)


# Lanes


def lanes(clock: Any, **how: Any) -> Any:
    return admission(clock, **({"blocks": 1000, "long_prompt_tokens": 200} | how))


def test_a_long_prompt_in_prefill_leaves_half_of_the_budget_to_short_ones(clock):
    adm = lanes(clock)
    long = adm.submit(need(800, 16), 0, None, never)
    assert isinstance(long, Admitted) and (adm.long.prefill, adm.short.prefill) == (800, 0)
    shorts = [adm.submit(need(100, 16), 0, None, settle_into([], "short")) for _ in range(3)]
    assert [type(got) for got in shorts] == [Admitted, Admitted, Waiter]
    long.prefill_done()
    assert adm.waiting == 0 and adm.short.prefill == 300


def test_a_second_long_prompt_waits_and_short_ones_flow_past_it(clock):
    adm = lanes(clock)
    first = adm.submit(need(300, 16), 0, None, never)
    log: list[Any] = []
    assert isinstance(adm.submit(need(300, 16), 0, None, settle_into(log, "long")), Waiter)
    for _ in range(20):
        short = adm.submit(need(100, 16), 0, None, never)
        assert isinstance(short, Admitted)
        short.prefill_done()
        short.release()
    assert log == []
    first.prefill_done()
    assert [name for name, _ in log] == ["long"]


def test_short_prompts_have_the_whole_budget_while_no_long_one_is_there(clock):
    adm = lanes(clock)
    assert all(isinstance(adm.submit(need(100, 16), 0, None, never), Admitted) for _ in range(5))
    assert isinstance(adm.submit(need(100, 16), 0, None, settle_into([], "short")), Waiter)
    assert isinstance(adm.submit(need(900, 16), 0, None, never), Admitted)


def test_who_finds_no_room_is_passed_for_as_many_blocks_as_it_asks_for_and_no_more(clock):
    adm = lanes(clock, blocks=64, queued=100, prefill=100_000, sequences=1000)
    running = [adm.submit(need(16, 16), 0, None, never) for _ in range(32)]  # 2 blocks each: full
    log: list[Any] = []
    adm.submit(need(300, 20), 0, None, settle_into(log, "long"))  # 20 blocks
    for _ in range(30):
        adm.submit(need(16, 16), 0, None, settle_into(log, "short"))
    for held in running:
        held.release()
    names = [name for name, _ in log]
    assert names == ["short"] * 10 + ["long"] + ["short"] * 12  # 20 blocks, then its own 20, then the other 24


def test_the_other_lane_passes_one_for_one_where_sequences_are_short(clock):
    adm = lanes(clock, sequences=1)
    running = adm.submit(need(16, 16), 0, None, never)
    log: list[Any] = []
    for name, prompt in (("long", 300), ("long", 300), ("short", 16), ("short", 16)):
        clock.now += 0.001
        adm.submit(need(prompt, 16), 0, None, settle_into(log, name))
    for _ in range(4):
        running.prefill_done()
        running.release()
        running = log[-1][1]
    assert [name for name, _ in log] == ["long", "long", "short", "short"]


def test_a_lower_priority_never_takes_the_room_that_a_higher_one_waits_for(clock):
    adm = lanes(clock, blocks=30, prefill=100_000)
    first = adm.submit(need(16, 240), 0, None, never)  # 16 blocks
    log: list[Any] = []
    adm.submit(need(300, 20), 0, None, settle_into(log, "long"))  # 20 blocks: no room
    adm.submit(need(16, 16), 1, None, settle_into(log, "lower"))
    assert log == []
    assert isinstance(adm.submit(need(16, 16), 0, None, never), Admitted)  # its equal may pass
    first.release()
    assert [name for name, _ in log] == ["long", "lower"]


def test_waiting_two_seconds_is_worth_a_level_of_priority(clock):
    adm = admission(clock, prefill=100, seconds=60.0)
    running = adm.submit(need(), 0, None, never)
    log: list[Any] = []
    adm.submit(need(), 1, None, settle_into(log, "old"))
    clock.now += 1.9
    adm.submit(need(), 0, None, settle_into(log, "higher"))
    clock.now += 0.2
    adm.submit(need(), 0, None, settle_into(log, "too late"))
    for _ in range(3):
        running.release()
        running = log[-1][1]
    assert [name for name, _ in log] == ["higher", "old", "too late"]


# Bounds of the queue


def test_a_lane_queues_so_many_seconds_of_the_measured_prefill_rate(clock):
    adm = lanes(clock, max_queued_tokens=0, prefill=400, queue_prefill_seconds=0.25)
    assert (adm.queue_limit(adm.short), adm.queue_limit(adm.long)) == (400, 200)
    adm.waits.measure(lambda: 1000.0)
    assert (adm.queue_limit(adm.short), adm.queue_limit(adm.long)) == (250, 125)
    long = adm.submit(need(900, 16), 0, None, never)
    assert adm.queue_limit(adm.short) == 125
    long.prefill_done()
    for _ in range(4):
        assert isinstance(adm.submit(need(100, 16), 0, None, never), Admitted)
    for _ in range(2):
        assert isinstance(adm.submit(need(100, 16), 0, None, never), Waiter)
    with pytest.raises(LayaError, match="200 prompt tokens wait in its short lane already, .* no more than 250") as e:
        adm.submit(need(100, 16), 0, None, never)
    # 400 in prefill may stay; 300 must be computed first, at 1000 a second.
    assert e.value.reason == "QUEUE_FULL" and e.value.retry_after == pytest.approx(0.3)


def test_a_lane_queues_more_whole_prompts_where_the_cache_saves_most_of_them(clock):
    adm = lanes(clock, max_queued_tokens=0, prefill=400, queue_prefill_seconds=0.25)
    adm.waits.measure(lambda: 1000.0, lambda: 0.8)
    assert (adm.queue_limit(adm.short), adm.queue_limit(adm.long)) == (1250, 625)


def test_one_may_wait_in_each_lane_however_long_its_prompt(clock):
    adm = lanes(clock, max_queued_tokens=50, prefill=400)
    adm.submit(need(300, 16), 0, None, never)
    assert isinstance(adm.submit(need(900, 16), 0, None, never), Waiter)
    with pytest.raises(LayaError, match="long lane"):
        adm.submit(need(300, 16), 0, None, never)
    assert isinstance(adm.submit(need(200, 16), 0, None, never), Admitted)
    assert isinstance(adm.submit(need(200, 16), 0, None, never), Waiter)
    with pytest.raises(LayaError, match="short lane"):
        adm.submit(need(10, 16), 0, None, never)
    assert isinstance(adm.submit(need(200, 16), -1, None, never), Waiter)  # it would be first


def test_a_full_queue_does_not_keep_out_who_need_not_wait(clock):
    adm = lanes(clock, queued=1)
    adm.submit(need(300, 16), 0, None, never)
    adm.submit(need(300, 16), 0, None, never)
    assert isinstance(adm.submit(need(16, 16), 0, None, never), Admitted)
    with pytest.raises(LayaError, match="1 requests wait already"):
        adm.submit(need(300, 16), -1, None, never)


# Slow start


def test_room_grows_from_a_quarter_to_all_over_the_ramp(clock):
    adm = admission(clock, blocks=100, prefill=100_000, sequences=8, ramp_seconds=10.0)
    assert adm.headroom_tokens == 25 * 16
    assert isinstance(adm.submit(need(16, 16), 0, None, never), Admitted)
    assert isinstance(adm.submit(need(16, 16), 0, None, never), Admitted)
    log: list[Any] = []
    for _ in range(6):
        adm.submit(need(16, 16), 0, None, settle_into(log, "next"))
    assert adm.waiting == 6
    shares = []
    while not adm.ramp.done:
        assert adm.expire(clock.now) is not None or not adm.waiting
        clock.now += 0.25
        adm.expire(clock.now)
        for waiter in adm.short.live():
            waiter.expires = clock.now + 2
        shares.append(adm.sequences)
    assert shares == sorted(shares) and set(shares) == {2, 3, 4, 5, 6, 7, 8} and len(log) == 6
    assert adm.headroom_tokens == (100 - 16) * 16


def test_one_alone_may_take_more_than_the_ramp_gives(clock):
    adm = admission(clock, blocks=63, prefill=100_000, ramp_seconds=10.0)
    assert isinstance(adm.submit(need(16, 984), 0, None, never), Admitted)


async def test_who_waits_for_the_ramp_is_let_in_as_it_grows():
    loop = asyncio.get_running_loop()
    adm = admission(loop.time, blocks=100, prefill=100_000, sequences=4, ramp_seconds=0.2)
    warm = asyncio.create_task(adm.warm_up())
    tasks = [asyncio.create_task(adm.admit(need(16, 16))) for _ in range(4)]
    await until(lambda: adm.running == 1 and adm.waiting == 3, "one runs")
    held = await asyncio.wait_for(asyncio.gather(*tasks), 2)
    await asyncio.wait_for(warm, 2)
    assert len(held) == 4 and adm.ramp.done


# Shedding


async def test_shedding_refuses_with_a_hint_and_keeps_who_waits_waiting(live):
    running = await live.admit(need(400, 600))
    waiting = asyncio.create_task(live.admit(need(400, 600)))
    await until(lambda: live.waiting == 1, "it waits")
    live.close("guard", "memory is short", sheds=True, retry=3.0)
    with pytest.raises(LayaError, match="sheds load: memory is short") as e:
        await live.admit(need())
    assert (e.value.code, e.value.reason, e.value.retry_after) == (Code.RESOURCE_EXHAUSTED, "OVERLOADED", 3.0)
    running.release()
    await asyncio.sleep(0)
    assert (live.running, live.waiting) == (0, 1)
    live.reopen("guard")
    (await waiting).release()


async def test_who_waits_while_load_is_shed_is_refused_when_its_time_is_over():
    adm = admission(asyncio.get_running_loop().time, seconds=0.02)
    running = await adm.admit(need(400, 600))
    waiting = asyncio.create_task(adm.admit(need(400, 600)))
    await until(lambda: adm.waiting == 1, "it waits")
    adm.close("guard", "memory is short", sheds=True)
    running.release()
    with pytest.raises(LayaError) as e:
        await waiting
    assert e.value.reason == "QUEUE_TIMEOUT" and adm.running == adm.waiting == 0
