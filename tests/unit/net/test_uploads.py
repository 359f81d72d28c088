"""The longest pause of bodies that are arriving."""

from __future__ import annotations

import asyncio

from shared.net.uploads import Uploads
from tests.support.web import until


class Body:
    def __init__(self) -> None:
        self.stalls = 0

    def stalled(self) -> None:
        self.stalls += 1


async def test_only_those_that_pause_too_long_are_told_and_once():
    uploads = Uploads(asyncio.get_running_loop(), 0.1)
    silent, steady, whole = Body(), Body(), Body()
    for body in (silent, steady, whole):
        uploads.progress(body)
    uploads.end(whole)
    for _ in range(10):
        await asyncio.sleep(0.03)
        uploads.progress(steady)
    assert (silent.stalls, steady.stalls, whole.stalls) == (1, 0, 0)
    assert len(uploads) == 1
    await until(lambda: steady.stalls == 1)
    assert len(uploads) == 0
    uploads.progress(silent)
    await until(lambda: silent.stalls == 2)


async def test_closing_forgets_everybody():
    uploads = Uploads(asyncio.get_running_loop(), 0.02)
    body = Body()
    uploads.progress(body)
    uploads.close()
    await asyncio.sleep(0.05)
    assert (body.stalls, len(uploads)) == (0, 0)
