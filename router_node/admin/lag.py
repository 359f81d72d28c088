"""How late the event loop runs: what blocks it shows here first, and so does a process that stood still."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

_EVERY = 0.25  # seconds between two looks
_WINDOW = 15.0  # seconds; ``worst`` covers this one and the one before
STILL: Final = 1.0  # seconds late from which on peers may have given this process up meanwhile
AFTERMATH: Final = 2.0  # seconds after that in which it shows that they have
# One that goes on while the machine is suspended, where there is one.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class LoopLag:
    """Owns a task that sleeps and sees how much later than asked it wakes. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = _now) -> None:
        self._clock = clock
        self._now = 0.0
        self._before = 0.0
        self._due = math.inf  # when the task is to wake
        self._shows_until = 0.0  # what came of the last stand-still
        self._task: asyncio.Task[None] | None = None

    @property
    def worst(self) -> float:
        """The longest delay of the last 15 to 30 seconds, in seconds."""
        return max(self._now, self._before)

    def stood_still(self) -> bool:
        """Whether the loop has only just gone on after a second or more: who is gone now may have given it up.

        True from the first callback on; the task that looks may not have had its turn yet.
        """
        now = self._clock()
        return now < self._shows_until or now - self._due > STILL

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="loop-lag")

    async def close(self) -> None:
        """Stop looking."""
        self._due = math.inf
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        turned = self._clock()
        while True:
            self._due = self._clock() + _EVERY
            await asyncio.sleep(_EVERY)
            woken = self._clock()
            late = woken - self._due
            self._now = max(self._now, late)
            if late > STILL:
                self._shows_until = woken + AFTERMATH
            if woken - turned > _WINDOW:
                self._before, self._now = self._now, 0.0
                turned = woken
