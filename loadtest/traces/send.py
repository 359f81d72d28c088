"""Sends a trace by the clock, in one process of asyncio: what is due is sent whether or not earlier ones have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from loadtest.traces.items import Item, Loaded
from loadtest.users.arrivals import Gate
from loadtest.users.call import Call, Outcome

Ask = Callable[[Call], Awaitable[Outcome]]
GIVE_UP = 20.0
"""Seconds in which nothing but unreachable came, after which the target is taken to be gone."""
_LEAST = 5
"""Calls in a row that must have found nobody by then."""


class Line(msgspec.Struct, frozen=True):
    """One call of a replay. Times are seconds."""

    item: int
    """Number of the request or conversation, from 0."""
    due: float
    late: float
    """How long after its time it was made."""
    reason: str
    ttft: float
    itl: float
    total: float
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    detail: str = ""


@dataclass(slots=True)
class Sent:
    """What became of a replay."""

    lines: list[Line] = field(default_factory=list)
    seconds: float = 0.0
    items: int = 0
    """Requests and conversations that were begun."""
    dropped: int = 0
    """Those that were not, for the cap of what is in flight."""
    cut: int = 0
    """Those that were still running at the end."""
    most: int = 0
    """Most in flight at a time."""
    ended: str = ""
    """Why it ended before its time; empty when it did not."""


class Sender:
    """One replay."""

    def __init__(self, ask: Ask, key: Callable[[int], str], cap: int, tell: Callable[[Line], None]) -> None:
        """``key`` is the API key of an item, by number; ``tell`` gets every call when it is over."""
        self._ask, self._key, self._tell = ask, key, tell
        self._gate = Gate(cap)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reached = 0.0
        self._missed = 0
        self.sent = Sent()

    async def run(self, loaded: Loaded, budget: float, drain: float) -> Sent:
        """Send it all; after ``budget`` seconds what is left is left, and running calls have ``drain`` to end."""
        begun = self._reached = time.perf_counter()
        try:
            for number, item in enumerate(loaded.items):
                wait = begun + item.at - time.perf_counter()
                if item.at > budget or time.perf_counter() - begun > budget:
                    self.sent.ended = f"the budget of {budget:g} s is over (--budget)"
                    break
                if wait > 0:
                    await asyncio.sleep(wait)
                if self._gone():
                    self.sent.ended = f"the target has been unreachable for {GIVE_UP:g} s"
                    break
                self._start(number, item, begun)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=min(drain, max(0.0, budget + drain)))
        except asyncio.CancelledError:
            self.sent.ended = "interrupted"
        finally:
            running = list(self._tasks)
            self.sent.cut = len(running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self.sent.seconds = time.perf_counter() - begun
            self.sent.most = self._gate.most
        return self.sent

    def _start(self, number: int, item: Item, begun: float) -> None:
        if not self._gate.enter():
            self.sent.dropped += 1
            return
        self.sent.items += 1
        task = asyncio.create_task(self._play(number, item, begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, number: int, item: Item, begun: float) -> None:
        late = max(0.0, time.perf_counter() - begun - item.at)
        due = item.at
        scenario = item.play()
        try:
            call = next(scenario)
            while True:
                if call.pause:
                    await asyncio.sleep(call.pause)
                    due, late = time.perf_counter() - begun, 0.0
                out = await self._ask(msgspec.structs.replace(call, key=self._key(number), lane=number))
                self._over(number, out, due, late)
                call = scenario.send(out)
        except StopIteration:
            pass
        finally:
            self._gate.leave()

    def _over(self, number: int, out: Outcome, due: float, late: float) -> None:
        if out.unreachable:
            self._missed += 1
        else:
            self._missed, self._reached = 0, time.perf_counter()
        # What came late for our own sake had to wait all the same.
        first = out.first + late if out.first else 0.0
        line = Line(
            number, due, late, out.reason, first, out.itl, out.total + late, out.prompt_tokens, out.cached_tokens,
            out.tokens, out.detail[:200],
        )  # fmt: skip
        self.sent.lines.append(line)
        self._tell(line)

    def _gone(self) -> bool:
        return self._missed >= _LEAST and time.perf_counter() - self._reached > GIVE_UP
