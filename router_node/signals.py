"""SIGTERM and SIGINT: the first asks for an orderly end, the second for an end at once. SIGUSR2: for a successor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Within ``with``, signals set ``stop``, then ``hurry``; a third one kills the process as it would any other.

    SIGUSR2 sets ``replace``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, numbers: Sequence[signal.Signals] = _SIGNALS) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.replace = asyncio.Event()
        self.grace = 0.0
        """Seconds that the end may take; 0 leaves that to the configuration."""
        self._loop = loop
        self._numbers = numbers

    def ask(self, grace: float) -> None:
        """End in order, as at the first signal, within ``grace`` seconds."""
        self.grace = grace
        self.stop.set()

    def __enter__(self) -> StopSignals:
        for number in self._numbers:
            self._loop.add_signal_handler(number, self._asked, number)
        self._loop.add_signal_handler(signal.SIGUSR2, self.replace.set)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number in (*self._numbers, signal.SIGUSR2):
            self._loop.remove_signal_handler(number)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # it must not end a process that leaves in order

    def _asked(self, number: signal.Signals) -> None:
        if not self.stop.is_set():
            self.stop.set()
        elif not self.hurry.is_set():
            self.hurry.set()
        else:
            os._exit(128 + number)


async def unless(hurry: asyncio.Event, work: asyncio.Future[None]) -> bool:
    """Wait for ``work``, or only until ``hurry`` is set: then it is cancelled. True when the work was done."""
    waiter = asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait((work, waiter), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            return True
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return False
    finally:
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)


async def first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiters = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
