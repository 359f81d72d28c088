"""Long work between which the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router_node.routes import slices
from router_node.routes.live import LiveTable
from router_node.routes.rules import Rule
from router_node.routes.slices import SLICE, Steps, Working, in_turns, turn, whole
from tests.support.routes import CAPS, rule

LARGEST = 5000  # no stretch is longer than a look at each rule of the largest bucket


def counting(units: list[int]) -> Steps[str]:
    done = 0
    for some in units:
        done += some
        yield some
    return f"{done} done"


def many(count: int) -> dict[str, Rule]:
    """Rules of one model, by tenant and by size."""
    rules = [
        rule(f"r{i:05}", when={"model": "m", "tenant": f"t{i}", "prompt_tokens": {"min": i, "max": 2 * i + 9}})
        for i in range(count)
    ]
    return {one.name: one for one in rules}


def test_a_turn_ends_when_its_work_is_done_or_its_time_is_up() -> None:
    assert whole(counting([SLICE] * 9)) == f"{9 * SLICE} done"
    assert turn(counting([1, 2])) == "3 done"
    steps = counting([SLICE // 2] * 5)
    for _ in range(2):
        with pytest.raises(Working):
            turn(steps)
    assert turn(steps) == f"{SLICE // 2 * 5} done"


async def test_the_loop_goes_on_between_slices() -> None:
    turns = 0

    def tick() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(tick)

    asyncio.get_running_loop().call_soon(tick)
    assert await in_turns(counting([SLICE] * 20)) == f"{20 * SLICE} done"
    assert turns >= 19


def work_of(make: Callable[[], Steps[LiveTable]]) -> list[int]:
    """Units of each stretch."""
    steps, units = make(), []
    while True:
        try:
            units.append(next(steps))
        except StopIteration:
            return units


def test_a_table_of_one_large_bucket_is_compiled_in_short_stretches() -> None:
    rules = many(5000)
    before = LiveTable(1, rules, CAPS)
    changed = {**rules, "r02500": rule("r02500", when={"model": "m", "tenant": "other"})}
    for made in (
        work_of(lambda: LiveTable.of(2, rules, CAPS)),
        work_of(lambda: LiveTable.of(2, changed, CAPS, before, {"r02500"})),
    ):
        assert sum(made) > 10 * SLICE  # it would be a stall
        assert max(made) <= LARGEST and len(made) > 100


def test_slices_make_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE", 50)
    rules = many(700)
    steps = LiveTable.of(1, rules, CAPS)
    for _ in range(10_000):
        try:
            live = turn(steps)
            break
        except Working:
            continue
    once = LiveTable(1, rules, CAPS)
    assert live.matcher.rules.keys() == once.matcher.rules.keys()
    (bucket,), (other,) = live.matcher.of_model("m"), once.matcher.of_model("m")
    assert [one.rule.name for one in bucket.rules] == [one.rule.name for one in other.rules] == sorted(rules)
