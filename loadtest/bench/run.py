"""Runs a plan: rounds within a budget, of one target or of two in turns; what there is is kept when something fails."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from loadtest.bench.client import Client
from loadtest.bench.cluster import Own
from loadtest.bench.drive import Driven, drive
from loadtest.bench.plan import Peak, Plan
from loadtest.bench.report import Report, Round, figures, hundredths
from loadtest.bench.target import Found, TargetDown, environment, probe
from loadtest.bench.watch import Watched, Watcher, means, split
from loadtest.bench.work import requests
from shared.tasks import cancel_all

_LOOKS = 60  # at a cluster in one round
_LAG = 0.05  # seconds late at which the bench itself is what is slow
Say = Callable[[str], None]


@dataclass(slots=True)
class Side:
    """A target and how it is reached."""

    address: str
    watched: Watched
    key: str | None = None
    tls: ssl.SSLContext | None = None
    own: Own | None = None
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _State:
    side: Side
    client: Client
    found: Found
    watcher: Watcher
    report: Report


class Runner:
    """One benchmark. ``budget`` is in seconds; ``say`` gets a line now and then."""

    def __init__(self, plan: Plan, seed: int, budget: float, command: str, model: str, say: Say) -> None:
        self._plan, self._seed, self._command, self._model, self._say = plan, seed, command, model, say
        self._budget = budget

    async def run(self, sides: list[Side]) -> list[Report]:
        """A report for each side; with two, their rounds take turns. Raises TargetDown when one never answered."""
        deadline = time.perf_counter() + self._budget
        if self._plan.usual * len(sides) > self._budget:
            self._say(
                f"the plan takes about {self._plan.usual * len(sides):.0f} s and the budget is {self._budget:g} s: "
                "it will be cut short, and what was measured is kept"
            )
        states: list[_State] = []
        pair = f"{os.getpid()}-{time.time_ns()}" if len(sides) > 1 else ""
        try:
            for side in sides:
                states.append(await self._open(side, pair))
            try:
                why = await self._rounds(states, deadline)
            except asyncio.CancelledError:  # Ctrl-C between two rounds
                why = "it was interrupted"
            for state in states:
                self._close(state, why)
            return [state.report for state in states]
        finally:
            for state in states:
                await state.watcher.stop()
                state.client.close()

    async def _rounds(self, states: list[_State], deadline: float) -> str:
        """All rounds, or why it ended before."""
        for number in range(self._plan.rounds):
            # The one that begins changes, so that neither always runs on a machine that the other has warmed.
            for state in states if number % 2 == 0 else states[::-1]:
                if why := await self._round(state, number, deadline):
                    return why
        return ""

    async def _open(self, side: Side, pair: str) -> _State:
        client = Client(side.address, side.key, side.tls)
        found = await probe(client, side.address, self._model)
        interval = max(0.2, self._plan.seconds / _LOOKS)
        report = Report(
            self._plan,
            self._seed,
            self._command,
            datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            side.address if side.own is None else f"own cluster ({self._plan.nodes.engine})",
            found.model,
            environment(),
            warnings=[*side.warnings, *found.warnings],
            pair=pair,
        )
        state = _State(side, client, found, Watcher(side.watched, interval), report)
        await self._warm_up(state)
        state.watcher.start()
        return state

    async def _warm_up(self, state: _State) -> None:
        if self._plan.warm_up > 0:
            plan = replace(self._plan, seconds=max(0.2, self._plan.warm_up), peaks=())
            asked = requests(plan, self._seed, "warm", state.found.tokens_per_word)
            await drive(state.client, asked, plan, state.found.model, time.perf_counter() + plan.seconds + 5.0)

    async def _round(self, state: _State, number: int, deadline: float) -> str:
        """One round of one side; why there shall be no further one, or ""."""
        plan, report = self._plan, state.report
        if time.perf_counter() + plan.seconds / 2 > deadline:
            return _over(self._budget)
        seed = self._seed + number
        # Both sides get the same requests; a salt of their own keeps one from filling the other's caches.
        salt = f"{state.side.address} {seed}"
        asked = await asyncio.to_thread(requests, plan, seed, salt, state.found.tokens_per_word)
        before = await state.watcher.stages()
        own = state.side.own
        death = asyncio.create_task(own.kill_one(plan.nodes)) if own is not None and plan.nodes.kill else None
        start = state.watcher.now
        try:
            driven = await drive(state.client, asked, plan, state.found.model, deadline)
        finally:
            await cancel_all([death])
        one = self._made(number, seed, start, driven)
        report.rounds.append(one)
        after = await state.watcher.stages()
        one.stages = means(before, after)
        one.split = split(before, after, [row.total for row in one.rows if row.served])
        f = one.figures
        self._say(
            f"round {number + 1} of {plan.rounds}, {report.target}: {f['served']:.0f} of {f['offered']:.0f} answered, "
            f"{f['refused']:.0f} refused, {f['failed']:.0f} failed, TTFT p50 {f['ttft_p50']:.0f} ms"
        )
        if driven.interrupted:
            return "it was interrupted"
        if driven.cut:
            return _over(self._budget)
        return await self._alive(state, one)

    def _made(self, number: int, seed: int, start: float, driven: Driven) -> Round:
        return Round(
            number,
            seed,
            round(start, 3),
            round(driven.seconds, 3),
            driven.rows,
            [round(gap, 6) for gap in hundredths(driven.gaps)],
            round(driven.lag, 4),
            driven.cut,
            figures=figures(driven.rows, driven.gaps, driven.seconds, self._plan),
        )

    async def _alive(self, state: _State, one: Round) -> str:
        if state.side.own is not None:
            await state.side.own.settle()
        if one.rows and not any(row.status for row in one.rows):
            try:
                await probe(state.client, state.side.address, state.found.model)
            except TargetDown as error:
                return f"the target went down: {error}"
        return ""

    def _close(self, state: _State, why: str) -> None:
        report = state.report
        report.partial = why
        report.samples = state.watcher.samples
        report.environment["load average after"] = f"{os.getloadavg()[0]:.1f}"
        if state.watcher.failures:
            report.warnings.append(f"{state.watcher.failures} looks at the cluster's own pages failed")
        if not state.side.watched.admin:
            report.warnings.append("no private listener is known (--admin): nodes and their room are not shown")
        late = max((one.lag for one in report.rounds), default=0.0)
        if late > _LAG:
            report.warnings.append(
                f"the bench itself sent up to {late * 1e3:.0f} ms late (p99 of a round): the machine was too busy, and "
                "times hold that too"
            )
        if report.rounds and not any(row.served for one in report.rounds for row in one.rows):
            report.warnings.append("not one request was answered in full")


def _over(budget: float) -> str:
    return f"the budget of {budget:g} s was used up"


def exit_code(reports: list[Report]) -> int:
    """0 all of the plan ran and nothing failed, 1 requests failed, 4 the target went down, 6 cut short, 130 stopped."""
    why = next((r.partial for r in reports if r.partial), "")
    if why.startswith("the target went down"):
        return 4
    if why.startswith("it was interrupted"):
        return 130
    if why:
        return 6
    # A node that dies by plan may take requests along; that is what the plan is to show.
    failed = any(one.figures["failed"] for r in reports if not r.plan.nodes.kill for one in r.rounds)
    return 1 if failed else 0


def quick(plan: Plan, rounds: int | None, seconds: float | None, rate: float | None) -> Plan:
    """The plan with what the command line changes; what happens within a round keeps its place in it."""
    if seconds is not None and seconds > 0:
        ratio = seconds / plan.seconds
        peaks = tuple(Peak(p.start * ratio, p.seconds * ratio, p.times) for p in plan.peaks)
        nodes = replace(plan.nodes, kill=plan.nodes.kill * ratio, back=plan.nodes.back * min(1.0, ratio))
        plan = replace(plan, peaks=peaks, nodes=nodes)
    given = {"rounds": rounds, "seconds": seconds, "rate": rate}
    return replace(plan, **{name: value for name, value in given.items() if value is not None})
