"""The longest turn of the loop is found, and every kind of change is told."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtest.bench_routes import many_rules
from loadtest.routes_stall import Turns, stalls
from router_node.dispatch import Dispatcher, DispatchSettings
from router_node.routes.desk import Desk, LocalKeeper
from router_node.routes.manager import RouteManager
from router_node.routes.table import RouteTable

BUSY = 0.02  # seconds of processor time


async def test_the_longest_turn_is_found_and_waiting_is_none() -> None:
    async with Turns() as turns:
        await asyncio.sleep(0)
        until = time.thread_time() + BUSY
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.001)
    assert turns.longest >= BUSY


async def test_each_kind_of_change_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher("w", DispatchSettings(), loop.time)
    manager = RouteManager(RouteTable(dispatcher), dispatcher, loop, {})
    read: list[int] = []

    async def again() -> None:
        read.append(manager.version)

    await stalls(Desk(manager, LocalKeeper(manager)), manager, many_rules(40), {"read again": again})
    manager.close()
    said = capsys.readouterr().out
    assert (
        read == [6]
        and "40 rules put at once" in said
        and "of those 20 that share a model" in said
        and "read again" in said
    )
