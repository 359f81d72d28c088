"""Sending by the clock: what is due goes out whatever became of earlier ones, within a cap, a budget and patience."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.traces import send
from loadtest.traces.figures import figures, text
from loadtest.traces.items import Item, Loaded, Notes
from loadtest.traces.send import Line, Sender, Sent
from loadtest.users.call import UNREACHABLE, Call, Outcome
from loadtest.users.record import Slo
from loadtest.users.scenarios import Scenario
from tests.support.ports import until


def one() -> Scenario:
    yield Call(name="trace", prompt="x")


def trace(*times: float) -> Loaded:
    return Loaded("t", "mooncake", [Item(at, one, 10, 2) for at in times], Notes())


class Target:
    """Answers when it is let."""

    def __init__(self, reason: str = "") -> None:
        self.calls: list[Call] = []
        self.let = asyncio.Event()
        self.reason = reason

    async def ask(self, call: Call) -> Outcome:
        self.calls.append(call)
        await self.let.wait()
        return Outcome(self.reason, first=0.01, last=0.02, total=0.02, tokens=2, prompt_tokens=10)


def sender(target: Target, cap: int = 100) -> tuple[Sender, list[Line]]:
    told: list[Line] = []
    return Sender(target.ask, lambda n: f"key-{n % 2}", cap, told.append), told


async def test_calls_are_made_at_their_times_though_none_has_ended() -> None:
    target = Target()
    made, told = sender(target)
    running = asyncio.create_task(made.run(trace(0.0, 0.0, 0.02), 60.0, 5.0))
    await until(lambda: len(target.calls) == 3, "not all were sent")
    assert not told
    target.let.set()
    sent = await running
    assert (sent.items, sent.most, sent.cut, sent.ended, len(sent.lines)) == (3, 3, 0, "", 3)
    assert [call.key for call in target.calls] == ["key-0", "key-1", "key-0"]
    assert told == sent.lines and all(line.total >= 0.02 + line.late for line in told)


async def test_past_the_cap_they_are_dropped_and_counted_and_at_the_end_cut_off() -> None:
    made, told = sender(Target(), cap=2)
    sent = await made.run(trace(*[0.0] * 5), 60.0, 0.0)
    assert (sent.items, sent.dropped, sent.cut, told) == (2, 3, 2, [])


async def test_the_budget_ends_it_with_what_there_is() -> None:
    target = Target()
    target.let.set()
    made, told = sender(target)
    sent = await made.run(trace(0.0, 0.01, 99.0), 0.05, 1.0)
    assert len(told) == 2 and sent.ended == "the budget of 0.05 s is over (--budget)"


async def test_a_target_that_has_been_gone_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "GIVE_UP", 0.05)
    target = Target(UNREACHABLE)
    target.let.set()
    made, told = sender(target)
    sent = await made.run(trace(*[i * 0.01 for i in range(500)]), 60.0, 1.0)
    assert 5 <= len(told) < 500 and "unreachable" in sent.ended


def test_figures_hold_what_was_asked_rejected_and_good() -> None:
    def line(reason: str = "", ttft: float = 0.1, itl: float = 0.01) -> Line:
        return Line(0, 0.0, 0.0, reason, ttft, itl, 0.5, 100, 50, 10)

    sent = Sent([line(), line(ttft=2.0), line(itl=0.5), line("QUEUE_FULL", 0.0, 0.0)], seconds=2.0, items=4, dropped=1)
    found = figures(sent, trace(0.0), Slo(1.0, 0.1))
    assert (found["answered"], found["good"], found["goodput_per_second"]) == (3, 1, 0.5)
    assert (found["rejected"], found["dropped"]) == ({"QUEUE_FULL": 1}, 1)
    assert (found["prompt_tokens"], found["cached_tokens"]) == (300, 150)
    assert found["ttft_ms"]["p99"] == 2000.0
    said = text(found, Slo(1.0, 0.1))
    assert "25.0% of the calls within 1000 ms" in said and "rejected QUEUE_FULL: 1" in said
