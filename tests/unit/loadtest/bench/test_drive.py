"""A round goes out when it is due, and keeps what there is when it is cut short."""

from __future__ import annotations

import asyncio
import time

from loadtest.bench.client import Client
from loadtest.bench.drive import Driven, drive
from loadtest.bench.plan import Plan, Work
from loadtest.bench.work import Asked
from tests.support.sse_server import Reply, Script, sse_server

PLAN = Plan("p", (Work("fixed"),), rate=10.0, seconds=0.3, patience=5.0)


def at(*times: float) -> list[Asked]:
    return [Asked(t, "fixed", "x", 1, 2) for t in times]


async def driven(script: Script, asked: list[Asked], plan: Plan = PLAN, budget: float = 10.0) -> Driven:
    async with sse_server(script) as server:
        client = Client(server.address)
        try:
            return await drive(client, asked, plan, "m", time.perf_counter() + budget)
        finally:
            client.close()


async def test_a_slow_server_does_not_slow_the_load_down() -> None:
    began = time.perf_counter()
    found = await driven(lambda body: Reply(pieces=[(0.5, "a")]), at(0.0, 0.1, 0.2))
    assert 0.65 < time.perf_counter() - began < 3.0
    assert [row.served for row in found.rows] == [True] * 3
    assert not found.cut and found.seconds >= 0.3
    assert all(row.first >= 0.5 for row in found.rows)


async def test_gaps_between_pieces_are_gathered() -> None:
    found = await driven(lambda body: Reply(pieces=[(0.0, "a"), (0.05, "b"), (0.05, "c")]), at(0.0))
    assert len(found.gaps) == 2 and found.rows[0].itl == round(sum(found.gaps) / 2, 6) > 0.03


async def test_what_is_too_much_is_not_sent_and_said() -> None:
    plan = Plan("p", PLAN.works, rate=10.0, seconds=0.2, most_in_flight=1)
    found = await driven(lambda body: Reply(pieces=[(0.3, "a")]), at(0.0, 0.05, 0.1), plan)
    assert [row.error for row in found.rows] == ["", "not sent", "not sent"]
    assert not found.rows[1].failed


async def test_the_deadline_cuts_a_round_and_keeps_its_rows() -> None:
    script: Script = lambda body: Reply(pieces=[(0.0, "a"), (30.0, "b")])  # noqa: E731
    found = await driven(script, at(0.0, 0.1, 5.0), budget=0.4)
    assert found.cut and [row.error for row in found.rows] == ["unfinished", "unfinished"]
    assert all(row.failed for row in found.rows)


async def test_a_cancellation_keeps_what_there_is() -> None:
    async with sse_server(lambda body: Reply(hang=len(body["messages"][0]["content"]) > 1)) as server:
        client = Client(server.address)
        asked = [Asked(0.0, "fixed", "x", 1, 2), Asked(0.0, "fixed", "long", 1, 2)]
        task = asyncio.create_task(drive(client, asked, PLAN, "m", time.perf_counter() + 60))
        for _ in asked:
            await asyncio.wait_for(server.asked.acquire(), 5.0)
        while not client._idle:  # the first is answered  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        found = await task
        assert found.interrupted and found.cut
        assert [row.error for row in found.rows] == ["", "unfinished"]
        client.close()
