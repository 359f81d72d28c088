"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN = 0.25  # seconds between cancellations


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None], limit: float = 5.0) -> bool:
    """Cancel tasks and wait until they have ended; False when one has not within ``limit`` seconds.

    A single ``cancel`` can be lost: a library that turns the CancelledError of its own time-out into another error
    takes ours along with it, and the loop around it goes on. So a task that is still there is cancelled again.
    """
    left = {task for task in tasks if task is not None and task is not asyncio.current_task()}
    until = asyncio.get_running_loop().time() + limit
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN)
        if left and asyncio.get_running_loop().time() > until:
            return False
    return True
