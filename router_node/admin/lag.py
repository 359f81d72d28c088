"""How late the event loop runs: what blocks it shows here first."""

from __future__ import annotations

import asyncio
import contextlib
import time

_EVERY = 0.25  # seconds between two looks
_WINDOW = 15.0  # seconds; ``worst`` covers this one and the one before


class LoopLag:
    """Owns a task that sleeps and sees how much later than asked it wakes."""

    def __init__(self) -> None:
        self._now = 0.0
        self._before = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def worst(self) -> float:
        """The longest delay of the last 15 to 30 seconds, in seconds."""
        return max(self._now, self._before)

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="loop-lag")

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        turned = time.monotonic()
        while True:
            asked = time.monotonic()
            await asyncio.sleep(_EVERY)
            woken = time.monotonic()
            self._now = max(self._now, woken - asked - _EVERY)
            if woken - turned > _WINDOW:
                self._before, self._now = self._now, 0.0
                turned = woken
