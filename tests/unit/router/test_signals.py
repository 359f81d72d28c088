"""The first signal asks for an orderly end, the second for an end at once."""

from __future__ import annotations

import asyncio
import os
import signal

from router_node.signals import StopSignals, first, unless
from tests.support.ports import until


async def test_the_first_signal_stops_and_the_second_hurries() -> None:
    with StopSignals(asyncio.get_running_loop()) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        await until(signals.stop.is_set, "the first signal")
        assert not signals.hurry.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await until(signals.hurry.is_set, "the second signal")


async def test_signals_are_let_go_in_the_end() -> None:
    with StopSignals(asyncio.get_running_loop()):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN, "it would end a process that leaves in order"


async def test_work_that_is_done_is_waited_for() -> None:
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    assert await unless(asyncio.Event(), done)


async def test_hurry_cancels_work() -> None:
    hurry = asyncio.Event()
    work = asyncio.ensure_future(asyncio.sleep(60))
    waiter = asyncio.ensure_future(unless(hurry, work))
    hurry.set()
    assert await waiter is False
    assert work.cancelled()


async def test_a_successor_is_asked_for_by_a_signal_of_its_own() -> None:
    with StopSignals(asyncio.get_running_loop()) as signals:
        os.kill(os.getpid(), signal.SIGUSR2)
        await first(signals.stop, signals.replace)
        assert signals.replace.is_set() and not signals.stop.is_set()
