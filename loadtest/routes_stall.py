"""How long the event loop of a router is held at a time while its table of 10,000 rules changes.

What is measured is the processor time of the loop's thread between two turns, so that other work on the machine does
not count; time in which it is the collector's too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from router_node.routes.desk import Desk
from router_node.routes.live import LiveTable
from router_node.routes.manager import RouteManager
from router_node.routes.rules import Rule, Span, Target, When, Words

LIMIT = 60.0  # seconds for each step


class Turns:
    """Watches the loop's turns while it is entered."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            before = now


async def stalls(
    desk: Desk, manager: RouteManager, rules: list[Rule], others: Mapping[str, Callable[[], Awaitable[None]]]
) -> None:
    """Print the longest turn of each kind of change; ``others`` are more of them, by what to call each."""

    async def live(change: Awaitable[object]) -> None:
        number = manager.book.number
        await change
        async with asyncio.timeout(LIMIT):
            while manager.version <= number:  # noqa: ASYNC110 - a benchmark's own wait
                await asyncio.sleep(0.01)

    print("longest turn of the loop, ms of its processor time:")
    async with Turns() as turns:
        await live(desk.change(rules, [], author="bench"))
    _show(f"{len(rules):,} rules put at once", turns.longest)
    ones = []
    for size in range(5):
        where = When(model=Words(exact=("shared",)), prompt_tokens=Span(size, 9 * size + 7))
        async with Turns() as turns:
            await live(desk.change([Rule("r00002", (Target("p"),), when=where)], [], author="bench"))
        ones.append(turns.longest)
    _show(f"one changed of those {len(rules) // 2:,} that share a model, most of five", max(ones))
    _show("the same, median", sorted(ones)[2])
    for what, do in others.items():
        async with Turns() as turns:
            await do()
        _show(what, turns.longest)
    with manager.growth.of(len(rules)):
        began = time.thread_time()
        LiveTable(1, manager.book.rules, {})
        _show("the first table of a router that starts, compiled as a whole", time.thread_time() - began)


def _show(what: str, seconds: float) -> None:
    print(f"  {seconds * 1e3:7.1f}  {what}")
