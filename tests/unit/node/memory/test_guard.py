"""When a node sheds, why, and when it stops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory.guard import GpuReading, Guard, GuardSettings, Readings

CALM = Readings(0.5, 8 << 30, 0.0, 1 << 30, (GpuReading(0, 0.9, 60.0, 88.0, 1.0),))
ALL = GuardSettings(
    memory=0.95, stall=25.0, rss=4 << 30, gpu_memory=0.98, gpu_celsius=80.0, gpu_power=1.2, resume_seconds=3.0
)


def gpu(**values: object) -> Readings:
    return replace(CALM, gpus=(replace(CALM.gpus[0], **values),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("readings", "cause", "words"),
    [
        (replace(CALM, memory=0.951), "memory", "memory is short: 95 % of 8 GiB in use (limit 95 %)"),
        (replace(CALM, memory=0.97, memory_limit=None), "memory", "memory is short: 97 % in use (limit 95 %)"),
        (replace(CALM, stall=40.0), "stall", "all tasks wait for it 40 % of the time (limit 25 %)"),
        (replace(CALM, rss=5 << 30), "rss", "take 5 GiB of memory (limit 4 GiB)"),
        (gpu(memory=0.99), "gpu_memory", "the memory of GPU 0 is short: 99 % in use (limit 98 %)"),
        (gpu(celsius=80.0), "gpu_celsius", "GPU 0 is hot: 80 °C (limit 80 °C)"),
        (gpu(power=1.3), "gpu_power", "GPU 0 draws 130 % of its power limit (limit 120 %)"),
        (gpu(lost=True), "gpu_lost", "GPU 0 does not answer any more; look at the machine"),
    ],
)
def test_each_limit_closes_and_says_why(readings, cause, words):
    guard = Guard(ALL)
    assert not guard.look(CALM, 0.0) and guard.cause == ""
    assert guard.look(readings, 1.0)
    assert guard.shedding and guard.cause == cause and guard.reason.endswith(words)
    assert not guard.look(CALM, 2.0) and guard.shedding
    assert guard.look(CALM, 5.0) and guard.reason == guard.cause == ""


def test_what_a_machine_does_not_tell_closes_nothing():
    guard = Guard(ALL)
    assert not guard.look(Readings(), 0.0)
    assert not guard.look(Readings(gpus=(GpuReading(0), GpuReading(1))), 1.0) and not guard.shedding


def test_a_limit_of_zero_is_off():
    off = GuardSettings(memory=0.0, stall=0.0)
    assert not Guard(off).look(Readings(1.0, 1, 100.0, 1 << 50, (GpuReading(0, 1.0, 120.0, None, 9.0),)), 0.0)


def test_without_a_limit_a_gpu_is_hot_two_degrees_below_where_its_driver_slows_it():
    guard = Guard(GuardSettings())
    assert not guard.look(gpu(celsius=85.9), 0.0)
    assert guard.look(gpu(celsius=86.0), 1.0)
    assert "limit 86" in guard.reason


def test_between_the_limit_and_the_hysteresis_nothing_changes():
    guard = Guard(ALL)
    between = replace(CALM, memory=0.94)
    assert not guard.look(between, 0.0)
    guard.look(replace(CALM, memory=0.96), 1.0)
    for now in range(2, 100):
        assert not guard.look(between, float(now)) and guard.shedding
    guard.look(CALM, 100.0)
    guard.look(between, 102.9)  # not calm all the time: the clock starts again
    guard.look(CALM, 103.0)
    assert not guard.look(CALM, 105.9) and guard.look(CALM, 106.0)


def test_what_never_closed_need_only_be_below_its_limit():
    guard = Guard(ALL)
    full = gpu(memory=0.979, celsius=79.9)  # nearly at two limits, as it always is
    guard.look(replace(full, memory=0.96), 0.0)
    guard.look(full, 1.0)
    assert guard.look(full, 4.0) and not guard.shedding


def test_a_gpu_that_is_meant_to_be_full_can_open_again():
    guard = Guard(replace(ALL, gpu_memory=0.99))
    guard.look(gpu(memory=0.995), 0.0)
    guard.look(gpu(memory=0.984), 1.0)
    assert guard.look(gpu(memory=0.984), 4.0) and not guard.shedding


def test_each_gpu_is_judged_by_itself():
    guard = Guard(ALL)
    cool, hot = GpuReading(0, celsius=79.0), GpuReading(1, celsius=81.0)
    guard.look(replace(CALM, gpus=(cool, hot)), 0.0)
    assert guard.reason.startswith("GPU 1")
    guard.look(replace(CALM, gpus=(cool, replace(hot, celsius=70.0))), 1.0)
    assert guard.look(replace(CALM, gpus=(cool, replace(hot, celsius=70.0))), 4.0)


def test_the_reason_stays_while_the_same_limit_closes_and_changes_with_another():
    guard = Guard(ALL)
    guard.look(replace(CALM, memory=0.96), 0.0)
    first = guard.reason
    assert not guard.look(replace(CALM, memory=0.99), 1.0) and guard.reason == first
    assert not guard.look(replace(gpu(celsius=90.0), memory=0.99), 2.0) and guard.reason == first
    assert guard.look(gpu(celsius=90.0), 3.0) and guard.cause == "gpu_celsius"


def test_a_source_that_goes_silent_holds_nothing_closed():
    guard = Guard(ALL)
    guard.look(replace(CALM, memory=0.96), 0.0)
    guard.look(Readings(), 1.0)
    assert guard.look(Readings(), 4.0) and not guard.shedding


@given(st.lists(st.tuples(st.floats(0, 1.2), st.floats(0.1, 2)), max_size=60))
def test_it_never_flaps_faster_than_the_time_to_resume(values):
    guard, now, opened, closed = Guard(ALL), 0.0, -100.0, -100.0
    for value, gap in values:
        now += gap
        was = guard.shedding
        changed = guard.look(replace(CALM, memory=value), now)
        assert changed == (was != guard.shedding)
        if guard.shedding and not was:
            closed = now
            assert value >= ALL.memory
        if was and not guard.shedding:
            opened = now
            assert value < ALL.memory * 0.98 and now - closed >= ALL.resume_seconds
    assert opened <= now
