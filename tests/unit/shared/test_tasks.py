"""Tasks end, also those that swallow a cancellation."""

from __future__ import annotations

import asyncio
import contextlib

from shared.tasks import cancel_all


async def stubborn(times: int) -> None:
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


async def test_a_lost_cancellation_is_repeated() -> None:
    task = asyncio.create_task(stubborn(1))
    await asyncio.sleep(0)
    assert await cancel_all([task, None])
    assert task.cancelled()


async def test_a_task_that_never_ends_is_given_up_in_time() -> None:
    task = asyncio.create_task(stubborn(3))
    await asyncio.sleep(0)
    assert not await cancel_all([task], limit=0.3)
    assert await cancel_all([task])


async def test_finished_tasks_and_their_errors_are_no_trouble() -> None:
    async def fails() -> None:
        raise ValueError

    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    assert await cancel_all([task])
    assert isinstance(task.exception(), ValueError)
