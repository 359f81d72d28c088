"""The dispatcher's expire is called in time, and as seldom as it asks."""

from __future__ import annotations

import asyncio

from router_node.relay.expiry import Expiry


class Target:
    def __init__(self, following: list[float | None]) -> None:
        self.calls: list[float] = []
        self.following = following
        self.called = asyncio.Event()

    def expire(self, now: float) -> float | None:
        self.calls.append(now)
        self.called.set()
        return self.following.pop(0) if self.following else None


async def test_expire_is_called_at_the_earliest_wake_and_again_when_it_says_so():
    loop = asyncio.get_running_loop()
    expiry = Expiry(loop)
    start = loop.time()
    target = Target([start + 0.05, None])
    expiry.bind(target)
    expiry.wake(start + 30)
    expiry.wake(start + 0.02)
    expiry.wake(start + 10)
    while len(target.calls) < 2:
        target.called.clear()
        await asyncio.wait_for(target.called.wait(), 5)
    assert target.calls[0] - start >= 0.015
    assert target.calls[1] - start >= 0.045
    assert expiry._handle is None


async def test_after_close_nothing_is_called():
    loop = asyncio.get_running_loop()
    expiry, target = Expiry(loop), Target([])
    expiry.bind(target)
    expiry.wake(loop.time())
    expiry.close()
    done = loop.create_future()
    loop.call_later(0.02, done.set_result, None)
    await done
    assert not target.calls
