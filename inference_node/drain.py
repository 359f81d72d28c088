"""Draining: nothing new, what runs may finish for a while, then it is cut off."""

from __future__ import annotations

import asyncio
import logging

from inference_node.door import Door
from inference_node.state import NodeState
from shared.logging import event


class Drainer:
    """Begins, undoes and awaits a drain; one per node."""

    def __init__(self, state: NodeState, door: Door, log: logging.Logger) -> None:
        self._state = state
        self._door = door
        self._log = log
        self._task: asyncio.Task[None] | None = None

    def begin(self, grace: float, migrate: bool = False) -> None:
        """Take nothing new; cut off what still runs after ``grace`` seconds. A later call sets a new grace.

        With ``migrate`` the streams that can go on elsewhere are ended at once.
        """
        self._stop_task()
        self._state.drain()
        moved = self._door.cut_off(migratable=True) if migrate else 0
        event(self._log, logging.INFO, "draining", grace=grace, moved=moved)
        self._task = asyncio.get_running_loop().create_task(self._finish(grace), name="drain")

    def undo(self) -> None:
        """Take requests again."""
        self._stop_task()
        if self._state.draining:
            self._state.drain(undo=True)
            event(self._log, logging.INFO, "drain_undone")

    async def finished(self) -> None:
        """Return once the drain has left nothing running."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Stop waiting."""
        task = self._task
        self._stop_task()
        if task is not None:
            await asyncio.wait({task})

    def _stop_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _finish(self, grace: float) -> None:
        serving = self._state.serving_or_none
        if serving is None:
            return
        try:
            async with asyncio.timeout(grace):
                await serving.admission.wait_idle()
        except TimeoutError:
            count = self._door.cut_off()
            event(self._log, logging.WARNING, "drain_cut_off", requests=count, grace=grace)
            return
        event(self._log, logging.INFO, "drained")
