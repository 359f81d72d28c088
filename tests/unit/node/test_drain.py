"""Draining alone: graces set anew, undone, awaited."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from inference_node.admission import Need
from inference_node.call import Call
from inference_node.door import Door
from inference_node.drain import Drainer
from inference_node.metrics import NodeMetrics
from inference_node.report import Reporter
from inference_node.state import NodeState
from shared import logging as logs
from shared.errors import Code, LayaError
from tests.support.ports import until
from tests.unit.node.harness import config
from tests.unit.node.test_report import serving


def parts() -> Any:
    loop = asyncio.get_running_loop()
    state = NodeState(config(), "n")
    admission = serving(state, loop.time)
    reporter = Reporter(state, loop.time)
    door = Door(state, reporter, NodeMetrics(state, reporter), time.monotonic)
    return state, admission, door, Drainer(state, door, logs.get("test"))


async def visit(door: Any, forever: Any = True) -> Any:
    async with door.visit("generate", Call({b"laya-dispatch": b"w-1"}, "r"), Need([10], 10), 0, 0.0):
        if forever:
            await asyncio.Event().wait()


async def test_an_idle_node_is_drained_at_once():
    state, _, _, drainer = parts()
    drainer.begin(30.0)
    await asyncio.wait_for(drainer.finished(), 1)
    assert state.draining and not state.ready
    await drainer.close()


async def test_a_visit_past_the_grace_is_cancelled_and_leaves_nothing():
    _, admission, door, drainer = parts()
    task = asyncio.create_task(visit(door))
    await until(lambda: admission.running == 1, "it runs")
    drainer.begin(0.02)
    await asyncio.wait_for(drainer.finished(), 2)
    await asyncio.wait({task}, timeout=1)
    assert task.cancelled() and not door.visits
    assert admission.running == 0 and door.reporter.live("w") == []


async def test_with_migrate_only_those_that_can_go_on_elsewhere_end_at_once():
    _, admission, door, drainer = parts()
    told: list[LayaError] = []

    async def granted() -> None:
        entering = door.visit("generate", Call({}, "m"), Need([10], 10), 0, 0.0)
        entering.migratable = True
        entering.stop = lambda error: bool(told.append(error))  # says False: the task is to be cancelled
        async with entering:
            await asyncio.Event().wait()

    stays, goes = asyncio.create_task(visit(door)), asyncio.create_task(granted())
    await until(lambda: admission.running == 2, "both run")
    drainer.begin(60.0, migrate=True)
    await asyncio.wait({goes}, timeout=1)
    assert goes.cancelled() and not stays.done()
    assert [(error.code, error.reason) for error in told] == [(Code.UNAVAILABLE, "DRAINING")]
    stays.cancel()
    await asyncio.wait({stays})
    await drainer.close()


async def test_a_new_grace_replaces_the_old_and_undo_keeps_what_runs():
    state, admission, door, drainer = parts()
    task = asyncio.create_task(visit(door))
    await until(lambda: admission.running == 1, "it runs")
    drainer.begin(0.05)
    drainer.begin(60.0)
    drainer.undo()
    drainer.undo()
    assert state.ready and admission.closed_reason == ""
    assert drainer._task is None and not task.done()  # nothing is left that could cut it off
    task.cancel()
    await asyncio.wait({task})
    await drainer.close()
