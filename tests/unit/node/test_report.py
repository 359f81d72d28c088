"""Reports: every dispatch counted once, the full set on a new watch, due on a change of over 2 %, bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference_node.admission import Admission, AdmissionSettings, Admitted, Need
from inference_node.engines.base import EngineInfo, EngineStats
from inference_node.memory import Ledger
from inference_node.report import HEARTBEAT, MAX_TOLD, MAX_WATCHES, EngineRates, Load, Reporter
from inference_node.state import NodeState, Serving
from shared.config.schema import Config
from shared.errors import LayaError
from tests.support.ports import until
from tests.unit.node.harness import config


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """Has counters and nothing else."""

    name = "fake"

    def __init__(self) -> None:
        self.counters = EngineStats()

    def stats(self) -> EngineStats:
        return self.counters


def serving(state: NodeState, clock) -> Admission:
    info = EngineInfo("fake", "m", "", 4096, "", 16, 1000, 50, 512)
    admission = Admission(Ledger(1000, 16), info, AdmissionSettings(10, 2.0, 100_000, 50), clock)
    state.start_serving(Serving(FakeEngine(), info, admission))  # type: ignore[arg-type]
    return admission


@pytest.fixture
def parts() -> Any:
    clock = Clock()
    state = NodeState(Config(), "n1")
    admission = serving(state, clock)
    return state, admission, Reporter(state, clock), clock


def hold(admission: Admission, prompt=16, new=16) -> Admitted:
    got = admission.submit(Need([prompt], new), 0, None, lambda outcome: None)
    assert isinstance(got, Admitted)
    return got


async def test_the_first_report_comes_at_once_and_has_the_full_live_set(parts):
    state, admission, reporter, _ = parts
    reporter.count("w1-1")
    reporter.count("w1-2")
    reporter.count("w2-1")
    hold(admission, 100, 60).prefill_done()
    message = await reporter.open("w1").next()
    assert message.full and message.sequence == 0
    assert sorted(message.counted_dispatches) == ["w1-1", "w1-2"]
    assert message.kv_capacity_tokens == 16_000 and message.headroom_tokens == 16_000 - 160
    assert message.boot_id == state.boot_id and message.ready and message.running == 1


async def test_counts_and_evictions_go_once_to_every_watch_of_their_watcher_and_to_no_other(parts):
    _, _, reporter, _ = parts
    one, two, other = reporter.open("w1"), reporter.open("w1"), reporter.open("w2")
    reporter.used("w1-1", 100, 16)
    reporter.evicted("w1-1", 64)
    reporter.evicted("w1-1", 48)
    reporter.evicted("w1-1", 56)
    for watch in (one, two):
        watch.wake()
        message = await watch.next()
        assert [(u.dispatch, u.prompt_tokens, u.cached_tokens) for u in message.usages] == [("w1-1", 100, 16)]
        assert [(e.dispatch, e.kept_tokens) for e in message.evictions] == [("w1-1", 48)]
        watch.wake()
        message = await watch.next()
        assert not message.usages and not message.evictions
    other.wake()
    message = await other.next()
    assert not message.usages and not message.evictions


async def test_what_waits_to_be_told_is_bounded(parts):
    _, _, reporter, _ = parts
    watch = reporter.open("w1")
    for i in range(MAX_TOLD + 10):
        reporter.used(f"w1-{i}", 1, 0)
        reporter.evicted(f"w1-{i}", 0)
    message = await watch.next()
    assert len(message.usages) == len(message.evictions) == MAX_TOLD


async def test_later_reports_list_what_is_counted_for_the_first_time(parts):
    _, _, reporter, _ = parts
    watch = reporter.open("w1")
    await watch.next()
    reporter.count("w1-1")
    reporter.count("w1-2")
    reporter.count("w2-9")
    reporter.end("w1-2")
    watch.wake()
    message = await watch.next()
    assert (list(message.counted_dispatches), message.full, message.sequence) == (["w1-1"], False, 1)
    watch.wake()
    assert not (await watch.next()).counted_dispatches


async def test_a_reconnected_watcher_gets_the_full_set_again(parts):
    _, _, reporter, _ = parts
    old = reporter.open("w1")
    reporter.count("w1-1")
    await old.next()
    reporter.close(old)
    reporter.close(old)
    reporter.count("w1-2")
    message = await reporter.open("w1").next()
    assert message.full and sorted(message.counted_dispatches) == ["w1-1", "w1-2"]
    assert reporter.watches == 1


async def test_ended_dispatches_leave_nothing_behind(parts):
    _, _, reporter, _ = parts
    for i in range(100):
        reporter.count(f"w{i}-1")
        reporter.end(f"w{i}-1")
        reporter.end(f"w{i}-1")
    assert reporter._live == {} and reporter._by_watcher == {}


async def test_only_a_change_of_over_two_percent_or_a_second_makes_a_report_due(parts):
    _, admission, reporter, clock = parts
    watch = reporter.open("w1")
    await watch.next()
    reporter.tick()
    assert not watch._due.is_set()
    small = hold(admission, 16, 240)  # 256 of 16,000 tokens
    small.prefill_done()
    reporter.tick()
    assert not watch._due.is_set()
    hold(admission, 16, 240).prefill_done()
    reporter.tick()
    assert watch._due.is_set()
    await watch.next()
    clock.now += HEARTBEAT
    reporter.tick()
    assert watch._due.is_set()


def test_a_state_is_a_change_whatever_the_numbers():
    base = Load(1000, 500, 1, 0, 0, True, False, "", 50, 1000)
    assert not base.differs(base)
    for name, value in (("ready", False), ("draining", True), ("closed_reason", "hot"), ("running", 3), ("waiting", 2)):
        changed = {f: getattr(base, f) for f in base.__slots__} | {name: value}
        assert Load(**changed).differs(base), name


async def test_draining_and_closing_are_told(parts):
    state, admission, reporter, _ = parts
    watch = reporter.open("w1")
    await watch.next()
    admission.close("guard", "memory is short")
    reporter.tick()
    assert (await asyncio.wait_for(watch.next(), 1)).closed_reason == "memory is short"
    state.drain()
    reporter.tick()
    message = await asyncio.wait_for(watch.next(), 1)
    assert message.draining and not message.ready


async def test_a_node_that_loads_reports_that_it_is_not_ready():
    reporter = Reporter(NodeState(Config(), "n"), Clock())
    message = await reporter.open("w").next()
    assert not message.ready and message.kv_capacity_tokens == 0


@pytest.mark.parametrize("bad", ["", "x" * 129, "a\nb"])
async def test_a_bad_watcher_id_is_refused(parts, bad):
    with pytest.raises(LayaError, match="watcher_id"):
        parts[2].open(bad)


async def test_watches_are_bounded(parts):
    reporter = parts[2]
    for i in range(MAX_WATCHES):
        reporter.open(f"w{i}")
    with pytest.raises(LayaError, match="watches are open"):
        reporter.open("one-more")


async def test_the_ticker_reports_a_burst_once_and_at_most_twenty_times_a_second():
    loop = asyncio.get_running_loop()
    state = NodeState(config(), "n1")
    admission = serving(state, loop.time)
    reporter = Reporter(state, loop.time)
    admission.on_change = reporter.poke
    task = asyncio.create_task(reporter.run())
    watch = reporter.open("w1")
    times: list[float] = []

    async def read() -> None:
        while True:
            await watch.next()
            times.append(loop.time())

    reader = asyncio.create_task(read())
    try:
        await until(lambda: times, "the first report")
        began = loop.time()
        turn = 0
        while loop.time() - began < 0.5:
            turn += 1
            held = hold(admission, 16, 500 + turn * 977 % 3000)
            await asyncio.sleep(0.003)
            held.release()
        assert turn > len(times) and 3 <= len(times) <= 13
        quiet = len(times)
        await until(lambda: len(times) >= quiet + 2, "a report a second", 3.0)
    finally:
        for t in (task, reader):
            t.cancel()
        await asyncio.gather(task, reader, return_exceptions=True)


class Crowd:
    """Watchers that take a report the moment it is due, on a clock of their own, at a node that never rests."""

    def __init__(self, watchers: int) -> None:
        self.clock = Clock()
        state = NodeState(Config(), "n1")
        self.admission = serving(state, self.clock)
        self.reporter = Reporter(state, self.clock)
        self.watches = [self.reporter.open(f"w{i}") for i in range(watchers)]
        self.taken: list[tuple[float, int]] = []
        self.held: Admitted | None = None

    async def take(self) -> None:
        for i, watch in enumerate(self.watches):
            if watch.due:
                await watch.next()
                self.taken.append((self.clock.now, i))

    async def live(self, seconds: float) -> None:
        for turn in range(int(seconds / 0.05)):
            if self.held is not None:
                self.held.release()
            self.held = hold(self.admission, 16, 500 + turn * 977 % 3000)
            self.held.prefill_done()
            self.clock.now += 0.05
            await self.take()
            self.reporter.tick()
            await self.take()

    def most_in_a_second(self) -> int:
        times = [at for at, _ in self.taken]
        return max(sum(at <= other < at + 0.9999 for other in times) for at in set(times))

    def longest_silence(self) -> float:
        """Of any watcher, in seconds, from its first report on."""
        last: dict[int, float] = {}
        longest = 0.0
        for at, i in self.taken:
            longest = max(longest, at - last.get(i, at))
            last[i] = at
        return max(longest, *(self.clock.now - at for at in last.values()))


@pytest.mark.parametrize("watchers", [1, 9, 40, 200, MAX_WATCHES])
async def test_a_node_sends_at_most_two_hundred_reports_a_second_whoever_watches(watchers):
    crowd = Crowd(watchers)
    await crowd.live(8.0)
    assert crowd.most_in_a_second() <= 200
    assert {i for _, i in crowd.taken} == set(range(watchers))
    if watchers * 20 <= 180:
        assert len(crowd.taken) >= watchers * 8 * 19, "few watchers are not held back"
    else:
        assert len(crowd.taken) >= 8 * 170, "the budget is used"
    assert crowd.longest_silence() <= max(0.06, watchers / 180 + 0.2), "and shared out evenly"


async def test_a_storm_of_reconnects_stays_within_the_budget():
    crowd = Crowd(0)
    for _ in range(100):
        for watch in crowd.watches:
            crowd.reporter.close(watch)
        crowd.watches = [crowd.reporter.open(f"w{i}") for i in range(300)]
        await crowd.live(0.05)
    assert crowd.most_in_a_second() <= 200
    assert len(crowd.taken) >= 5 * 170


async def test_first_reports_go_before_later_ones():
    crowd = Crowd(200)
    await crowd.live(3.0)
    newcomer = crowd.reporter.open("late")
    crowd.watches.append(newcomer)
    began = crowd.clock.now
    await crowd.live(0.2)
    assert next(at for at, i in crowd.taken if i == 200) - began <= 0.11


def test_rates_come_from_counters_and_survive_a_reset():
    rates = EngineRates()
    stats = EngineStats()
    for _ in range(20):
        stats.prompt_tokens += 8000
        stats.prefill_seconds += 1.0
        stats.generation_tokens += 300
        stats.decode_seconds += 2.0
        stats.prefix_queries += 1000
        stats.prefix_hits += 250
        rates.sample(stats)
    assert rates.prefill == pytest.approx(8000)
    assert rates.decode == pytest.approx(150)
    assert rates.prefix_hit_rate == pytest.approx(0.25)
    rates.sample(EngineStats())
    assert rates.prefill == pytest.approx(8000)
    assert EngineRates().prefill == 0.0


class ReportMachine(RuleBasedStateMachine):
    """A router that takes every report and an observer that knows everything agree on what is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.reporter = Reporter(NodeState(Config(), "n1"), self.clock)
        self.watch = self.reporter.open("w")
        self.number = 0
        self.live: set[str] = set()
        self.reserved: set[str] = set()  # what the router still reserves for
        self.ever: set[str] = set()

    def teardown(self) -> None:
        self.loop.close()

    @rule()
    def dispatch(self) -> None:
        self.number += 1
        name = f"w-{self.number:x}"
        self.live.add(name)
        self.reserved.add(name)
        self.reporter.count(name)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.live.discard(name)
        self.reserved.discard(name)  # its stream ended
        self.reporter.end(name)

    @rule()
    def report(self) -> None:
        self.watch.wake()
        message = self.loop.run_until_complete(self.watch.next())
        ids = set(message.counted_dispatches)
        if not message.full:
            assert not ids & self.ever, "counted twice"
        assert ids <= self.live
        self.ever |= ids
        self.reserved -= ids
        assert not self.reserved, "a report includes every live request, so it must list each"

    @rule()
    def reconnect(self) -> None:
        self.reporter.close(self.watch)
        self.watch = self.reporter.open("w")
        self.reserved = set(self.live)

    @invariant()
    def memory_is_bounded_by_what_is_alive(self) -> None:
        assert set(self.reporter.live("w")) == self.live
        assert set(self.watch._fresh) <= self.live


TestReportMachine = ReportMachine.TestCase
