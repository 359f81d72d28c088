"""Rounds, budgets and turns, against servers in this process."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loadtest.bench.plan import Peak, Plan, Work
from loadtest.bench.plans import PLANS
from loadtest.bench.report import Report
from loadtest.bench.run import Runner, Side, exit_code, quick
from loadtest.bench.target import TargetDown
from loadtest.bench.watch import Watched
from tests.support.ports import free_port
from tests.support.sse_server import Reply, sse_server
from tests.unit.loadtest.bench.made import made, row

PLAN = Plan("p", (Work("fixed", prompt=8, output=2),), rate=40.0, seconds=0.25, rounds=3, warm_up=0.0, patience=2.0)
LINES: list[str] = []


def runner(plan: Plan = PLAN, budget: float = 60.0) -> Runner:
    LINES.clear()
    return Runner(plan, 5, budget, "laya bench p", "", LINES.append)


async def test_all_rounds_run_with_seeds_of_their_own() -> None:
    async with sse_server() as server:
        [report] = await runner().run([Side(server.address, Watched())])
    assert [r.seed for r in report.rounds] == [5, 6, 7] and not report.partial
    assert all(one.figures["served"] == one.figures["offered"] > 0 for one in report.rounds)
    assert report.model == "m" and report.command == "laya bench p" and report.samples
    assert exit_code([report]) == 0
    assert any("private listener" in warning for warning in report.warnings)


async def test_two_targets_take_turns_and_get_the_same_requests() -> None:
    seen: list[str] = []

    def script(name: str):
        def reply(body: dict) -> Reply:
            seen.append(name)
            return Reply()

        return reply

    async with sse_server(script("a")) as one, sse_server(script("b")) as two:
        a, b = await runner(replace(PLAN, rounds=4)).run([Side(one.address, Watched()), Side(two.address, Watched())])
    assert a.pair == b.pair != ""
    assert [[r.at for r in x.rows] for x in a.rounds] == [[r.at for r in x.rows] for x in b.rounds]
    order = [name for i, name in enumerate(seen) if i == 0 or seen[i - 1] != name]
    assert order == ["a", "b", "a", "b", "a", "b", "a"]  # the two probes, then a b, b a, a b, b a


async def test_a_budget_that_is_too_small_keeps_what_there_is() -> None:
    async with sse_server() as server:
        [report] = await runner(replace(PLAN, rounds=50), budget=1.2).run([Side(server.address, Watched())])
    assert 1 <= len(report.rounds) < 50
    assert report.partial == "the budget of 1.2 s was used up" and exit_code([report]) == 6
    assert "will be cut short" in LINES[0]


async def test_a_round_that_does_not_end_is_cut_and_marked() -> None:
    def script(body: dict) -> Reply:
        return Reply(pieces=[(0.0, "x"), (60.0, "y")] if "time time" not in str(body) else [(0.0, "x")])

    async with sse_server(script) as server:
        plan = replace(PLAN, rate=8.0, patience=60.0)
        [report] = await runner(plan, budget=1.5).run([Side(server.address, Watched())])
    assert report.rounds[0].partial and report.whole_rounds() == []
    assert {r.error for r in report.rounds[0].rows} == {"unfinished"}
    assert exit_code([report]) == 6 and any("not one request" in w for w in report.warnings)


async def test_failures_are_told_by_the_exit_code() -> None:
    def script(body: dict) -> Reply:
        probing = "time time" in str(body)
        return Reply() if probing else Reply(500, error={"code": "broken"})

    async with sse_server(script) as server:
        [report] = await runner(replace(PLAN, rounds=1)).run([Side(server.address, Watched())])
    assert report.rounds[0].figures["failed"] == len(report.rounds[0].rows) > 0
    assert exit_code([report]) == 1


async def test_a_target_that_goes_down_in_the_middle_keeps_the_rounds_before() -> None:
    async with sse_server() as server:
        calls = 0

        async def gone() -> None:
            nonlocal calls
            calls += 1

        run = runner(replace(PLAN, rounds=6, patience=0.5))
        original = run._alive

        async def alive(state, one):
            if one.number == 1:
                state.client.close()
                state.side.address = f"127.0.0.1:{free_port()}"
                state.client._port = int(state.side.address.rpartition(":")[2])
            return await original(state, one)

        run._alive = alive  # type: ignore[method-assign]
        [report] = await run.run([Side(server.address, Watched())])
    assert len(report.whole_rounds()) == 3 and report.rounds[0].figures["served"] > 0
    assert {r.error for r in report.rounds[2].rows} == {"connection refused"}
    assert report.partial.startswith("the target went down: nothing answers") and exit_code([report]) == 4


async def test_a_target_that_is_down_is_no_report() -> None:
    with pytest.raises(TargetDown):
        await runner().run([Side(f"127.0.0.1:{free_port()}", Watched())])


def test_an_interruption_and_a_planned_death_have_their_codes() -> None:
    report = made(rounds=1)
    report.partial = "it was interrupted"
    assert exit_code([report]) == 130
    dying: Report = made(rounds=1)
    dying.rounds[0].rows.append(row(status=500, error="node_lost"))
    dying.rounds[0].figures["failed"] = 1.0
    assert exit_code([dying]) == 1
    dying.plan = replace(dying.plan, nodes=PLANS["dying-node"].nodes)
    assert exit_code([dying]) == 0


def test_a_shorter_round_keeps_its_shape() -> None:
    plan = quick(replace(PLANS["dying-node"], peaks=(Peak(6.0, 3.0, 2.0),)), 2, 6.0, 7.0)
    assert (plan.rounds, plan.seconds, plan.rate) == (2, 6.0, 7.0)
    assert plan.peaks == (Peak(3.0, 1.5, 2.0),) and plan.nodes.kill == 2.0 and plan.nodes.back == 1.5
    assert quick(PLAN, None, None, None) == PLAN
