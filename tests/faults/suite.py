"""Runs the faults one by one, then in random pairs, under load; finds what must not be."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from tests.faults.catalogue import KILLED, Fault, both, catalogue, nothing
from tests.faults.load import HUNG, Load
from tests.faults.record import Record
from tests.faults.site import Site
from tests.faults.tally import Tally

PAIR: Final = 4.0  # seconds that a pair of faults lasts
BUSY: Final = 1.0  # seconds that a machine with other work may add to a stall
_LONG: Final = 600.0  # seconds of a run that has the time for faults that last
_RECOVERY: Final = 30.0  # seconds for every router to have every node again


class Suite:
    """``run`` fills ``tallies``, one for each fault, and ``problems``, one sentence each."""

    def __init__(
        self,
        seconds: float,
        seed: int,
        clients: int,
        only: str = "",
        *,
        pause: float = 0.15,
        record: Record | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.tallies: list[Tally] = []
        self.problems: list[str] = []
        self.skipped: list[str] = []
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._seed = seed
        self._clients = clients
        self._only = only
        self._pause = pause
        self._record = record or Record()
        self._say = say

    async def run(self) -> None:
        """Start a site, break it for as long as was asked for, and end it."""
        began = time.monotonic()
        site = await asyncio.to_thread(Site(slow=True).__enter__)
        try:
            load = Load(site.addresses, self._clients, self._seed, self._pause)
            load.start()
            try:
                await asyncio.sleep(2.0)
                await self._break(site, load, began)
            finally:
                load.tally = after = Tally("after")
                async with asyncio.timeout(HUNG * 8):
                    await load.stop()
            self._judge(after, Fault("after", 0, nothing, clean=True, stall=KILLED))
            self.problems += await site.left()
            self.problems += site.tracebacks()
            self._record.draw()
        finally:
            await asyncio.to_thread(site.close)

    async def _break(self, site: Site, load: Load, began: float) -> None:
        faults = [fault for fault in catalogue() if self._only in fault.name]
        able = [fault for fault in faults if fault.works(site)]
        self.skipped = [fault.name for fault in faults if fault not in able]
        for name in self.skipped:
            self._say(f"skipped: {name}, which this machine does not allow")
        turn = 0
        while turn == 0 or time.monotonic() - began < self._seconds:
            for fault in able:
                if turn == 0 or time.monotonic() - began < self._seconds:
                    lasts = fault.long if fault.long and self._seconds >= _LONG else fault.seconds
                    await self._one(site, load, fault.name, [fault], lasts)
            pairs = [fault for fault in able if fault.name != "nothing"]
            while len(pairs) > 1 and time.monotonic() - began < self._seconds and self._rng.random() > 0.05:
                pair = self._rng.sample(pairs, 2)
                await self._one(site, load, " + ".join(fault.name for fault in pair), pair, PAIR)
            turn += 1

    async def _one(self, site: Site, load: Load, name: str, faults: Sequence[Fault], seconds: float) -> None:
        load.tally = tally = Tally(name)
        self.tallies.append(tally)
        before = await asyncio.to_thread(site.sent_on)
        for fault in faults:
            try:
                await fault.inject(site)
            except Exception as error:
                if len(faults) == 1:
                    self.problems.append(f"{name}: {error!r}"[:2000])
                else:  # what another one has broken may not be there to break
                    tally.reasons[f"{fault.name} not in force"] += 1
        await asyncio.sleep(seconds)
        for fault in faults:
            if fault.heal is not None:
                await fault.heal(site)
        try:
            await asyncio.to_thread(site.heal)
            await asyncio.to_thread(site.wait_ready, _RECOVERY)
        except AssertionError as error:
            self.problems.append(f"{name}: not whole again: {error}"[:3000])
        await load.passed()  # so that what this fault has cost is not put down to the next
        after = await asyncio.to_thread(site.sent_on)
        tally.sent_on = sum(count - before.get(pid, 0) for pid, count in after.items())
        await asyncio.to_thread(self._record.look, site)
        self._judge(tally, faults[0] if len(faults) == 1 else both(faults))
        self._say(" | ".join(tally.row()) + f" | {dict(tally.reasons)}")

    def _judge(self, tally: Tally, fault: Fault) -> None:
        if tally.wrong or tally.hung:
            said = "; ".join(tally.examples)
            self.problems.append(f"{tally.name}: {tally.wrong} wrong, {tally.hung} hung: {said}")
        if fault.clean and (tally.failed or tally.cut):
            reasons = dict(tally.reasons)
            self.problems.append(f"{tally.name}: {tally.failed} failed and {tally.cut} cut, none may: {reasons}")
        if fault.unaided and tally.retried:
            self.problems.append(
                f"{tally.name}: {tally.retried} took a client's retry, none may: {dict(tally.reasons)}"
            )
        if tally.stall > fault.stall + BUSY:
            self.problems.append(f"{tally.name}: a stall of {tally.stall:.2f} s, {fault.stall:g} s are allowed")
