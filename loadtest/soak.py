"""A long run at a moderate load: does anything grow? Memory, files, tasks, streams and the store, on record.

    make soak HOURS=12                      # soak/soak.csv, soak/soak.png, and a verdict
    python -m loadtest.soak --seconds 120   # the short form

A store, a router and simulated nodes, all on loopback, get waves of the plan ``soak`` of ``laya bench``: conversations,
some given up by their clients, and beside them short connections of all sorts, good, rude and broken. After each wave
the cluster rests for a moment, and what every process then holds is taken down. Ctrl-C ends it early; what there is is
judged. Exit codes: 0 all flat, 1 something grows or requests failed, 3 matplotlib is missing, 4 the cluster did not
start or ended, 6 too short to say.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis.asyncio
import uvloop
from msgspec.structs import replace

from loadtest import endurance
from loadtest.bench.client import Client
from loadtest.bench.cluster import sim_env
from loadtest.bench.drive import drive
from loadtest.bench.plan import Plan
from loadtest.bench.plans import PLANS
from loadtest.bench.plots import INSTALL, available, picture
from loadtest.bench.target import TargetDown, probe
from loadtest.bench.watch import page, ready_nodes, value
from loadtest.bench.work import requests
from loadtest.flat import WARM, Course, judge
from loadtest.rig import Rig, RigError, free_port, rss_bytes
from shared.config import ConfigError

_MIB = 1 << 20
REST = 10.0  # seconds for what is under way to end
_VISITS = 14  # short connections in a wave


@dataclass(frozen=True, slots=True)
class Figure:
    """One kind of thing that must not grow: its allowance is the larger of a count and a share of its level."""

    heading: str
    least: float
    share: float = 0.0

    def allowed(self, level: float) -> float:
        """How much it may grow over a run."""
        return max(self.least, self.share * level)


FIGURES = {
    "rss": Figure("resident memory, MiB", 4.0, 0.05),
    "files": Figure("open files", 4.0),
    "tasks": Figure("tasks", 4.0),
    "streams": Figure("streams, requests and holds", 4.0),
    "store": Figure("memory of the store, MiB", 0.5, 0.1),
}


@dataclass(slots=True)
class Series:
    """One process's figure over time."""

    seconds: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """Everything seen, by process and figure; rows go to the CSV as they come."""

    path: Path | None
    courses: dict[tuple[str, str], Series] = field(default_factory=dict)

    def begin(self) -> None:
        """Write the head of the CSV. Raises OSError."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("seconds,process,figure,value\n")

    def add(self, at: float, process: str, figure: str, value: float) -> None:
        """One look."""
        one = self.courses.setdefault((process, figure), Series())
        one.seconds.append(at)
        one.values.append(value)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(f"{at:.1f},{process},{figure},{value:g}\n")

    def verdicts(self) -> dict[tuple[str, str], Course]:
        """Each course judged."""
        return {
            key: judge(one.seconds, one.values, FIGURES[key[1]].allowed(max(one.values, default=0.0)))
            for key, one in self.courses.items()
        }


@dataclass(slots=True)
class Site:
    """The cluster that soaks."""

    rig: Rig
    address: str
    admin: str
    pids: dict[str, int]
    pages: dict[str, str]
    store: str


def start(rig: Rig, nodes: int) -> Site:
    """A store, nodes that register in it, and a router that finds them there. Raises RigError."""
    url = rig.store()
    env = {"LAYA_SERVER__REDIS": url}
    pids: dict[str, int] = {}
    pages: dict[str, str] = {}
    for i in range(nodes):
        name = f"node-{i + 1}"
        argv = ["--engine", "sim", "--port", str(free_port()), "--node-id", name]
        where, pid, _ = rig.python("inference_node.main", *argv, env=env | sim_env(PLANS["soak"].nodes, False))
        pids[name], pages[name] = pid, where
    address, pid, admin = rig.router([], env=env)
    return Site(rig, address, admin, {"router": pid, **pids}, {"router": admin, **pages}, url)


_STREAMS = {
    "router": ("laya_router_requests_in_flight", "laya_router_reservations", "laya_router_queue_depth",
               "laya_router_node_streams"),
    "node": ("laya_node_running_requests", "laya_node_waiting_requests", "laya_node_holds",
             "laya_node_engine_running_sequences"),
}  # fmt: skip
_BUSY = ("laya_router_requests_in_flight", "laya_router_queue_depth", "laya_node_running_requests")


class Soak:
    """One run."""

    def __init__(self, site: Site, record: Record, plan: Plan, seed: int) -> None:
        self._site, self._record, self._plan, self._seed = site, record, plan, seed
        self._began = time.monotonic()
        self.sent = 0
        self.errors: Counter[str] = Counter()
        self.interrupted = False

    async def run(self, seconds: float) -> None:
        """Waves and looks until ``seconds`` have passed. Raises TargetDown when the cluster ends by itself."""
        await self._ready()
        client = Client(self._site.address)
        store = redis.asyncio.from_url(self._site.store)
        number = 0
        try:
            found = await probe(client, self._site.address, "")
            while time.monotonic() - self._began < seconds and not self.interrupted:
                left = seconds - (time.monotonic() - self._began)
                plan = replace(self._plan, seconds=max(0.2, min(self._plan.seconds, left)))
                asked = await asyncio.to_thread(requests, plan, self._seed + number, str(number), found.tokens_per_word)
                visits = asyncio.create_task(self._visit(number))
                driven = await drive(
                    client, asked, plan, found.model, time.perf_counter() + plan.seconds + plan.patience
                )
                await visits
                self.sent += len(driven.rows)
                self.errors.update(row.error for row in driven.rows if row.failed)
                self.interrupted = driven.interrupted
                client.close()  # idle connections of ours are no leak of theirs
                await self._look(store)
                number += 1
        except asyncio.CancelledError:
            self.interrupted = True
        finally:
            client.close()
            await store.aclose()

    async def _ready(self) -> None:
        deadline = time.monotonic() + 30.0
        while True:
            try:
                if ready_nodes(await page(self._site.admin)) >= len(self._site.pids) - 1:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise TargetDown("the router did not find its nodes in the store within 30 s")
            await asyncio.sleep(0.05)

    async def _visit(self, number: int) -> None:
        host, _, port = self._site.address.rpartition(":")
        for i in range(_VISITS):
            try:
                async with asyncio.timeout(10.0):
                    await endurance.visit((host, int(port)), number + i)
            except (OSError, endurance.Broken) as error:
                self.errors[f"connection: {str(error) or 'timeout'}"[:100]] += 1

    async def _look(self, store: redis.asyncio.Redis) -> None:
        pages = await self._at_rest()
        at = time.monotonic() - self._began
        for name, text in pages.items():
            pid = self._site.pids[name]
            kind = "router" if name == "router" else "node"
            self._record.add(at, name, "rss", rss_bytes(pid) / _MIB)
            self._record.add(at, name, "files", float(len(os.listdir(f"/proc/{pid}/fd"))))
            self._record.add(at, name, "tasks", value(text, f"laya_{kind}_tasks"))
            self._record.add(at, name, "streams", sum(value(text, one) for one in _STREAMS[kind]))
        used = (await store.info("memory"))["used_memory"]
        self._record.add(at, "store", "store", float(used) / _MIB)

    async def _at_rest(self) -> dict[str, str]:
        """The pages of all processes once no request is under way; as they are after ``REST`` seconds."""
        deadline = time.monotonic() + REST
        while True:
            try:
                pages = {name: await page(where) for name, where in self._site.pages.items()}
            except OSError as error:
                raise TargetDown(f"a process of the cluster does not answer any more ({error})") from None
            busy = sum(value(text, one) for text in pages.values() for one in _BUSY)
            if not busy or time.monotonic() > deadline:
                return pages
            await asyncio.sleep(0.1)


def draw(record: Record, path: Path) -> None:
    """The picture: a panel for each figure, a line for each process. What is grey is warming up, and not judged."""
    last = max(one.seconds[-1] for one in record.courses.values())
    size, unit = (3600.0, "hours") if last > 2 * 3600.0 else (60.0, "minutes")

    def panels(axes: Sequence) -> None:  # type: ignore[type-arg]
        for axis, (figure, about) in zip(axes, FIGURES.items(), strict=True):
            top = 1.0
            width = 4.0  # the first ones are wider, so that none hides those of the same course
            for (process, what), one in record.courses.items():
                if what == figure:
                    top = max(top, *one.values)
                    axis.plot([s / size for s in one.seconds], one.values, label=process, linewidth=width)
                    width = max(1.0, width - 1.5)
                    first = one.seconds[0]
            axis.axvspan(first / size, (first + WARM * (last - first)) / size, color="0.93", zorder=0)
            axis.set_title(about.heading)
            axis.set_xlabel(unit)
            axis.set_ylim(-0.03 * top, 1.1 * top)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)

    path.write_bytes(picture(len(FIGURES), panels))


def told(record: Record, soak: Soak, seconds: float) -> tuple[str, int]:
    """The verdicts as a table in Markdown, and the exit code."""
    verdicts = record.verdicts()
    lines = [
        f"{seconds / 60:.1f} minutes, {soak.sent:,} requests, {sum(soak.errors.values())} failed\n",
        "| process | what | at first | at last | growth | an hour | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (process, figure), course in verdicts.items():
        grown, hourly = ("-" if one != one else f"{one:+.3g}" for one in (course.growth, course.per_hour))
        lines.append(
            f"| {process} | {FIGURES[figure].heading} | {course.first:.4g} | {course.last:.4g} | {grown} | {hourly} | "
            f"{course.verdict} |"
        )
    lines += [f"failed, {why}: {count}" for why, count in soak.errors.most_common(10)]
    found = {course.verdict for course in verdicts.values()}
    if "grows" in found or soak.errors:
        return "\n".join(lines), 1
    return "\n".join(lines), 6 if not found or "too short to say" in found else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--seconds", type=float, help="instead of --hours")
    parser.add_argument("--wave", type=float, help="seconds of load between two looks; default: by the length")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rate", type=float, default=PLANS["soak"].rate, help="requests a second in a wave")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("soak"))
    parser.add_argument("--no-plots", action="store_true")
    args = parser.parse_args(argv)
    seconds = args.seconds if args.seconds is not None else args.hours * 3600.0
    if not 1 <= seconds <= 31 * 86_400 or not 1 <= args.nodes <= 16 or not 0 < args.rate <= 10_000:
        parser.error("the length must be a second to 31 days, --nodes 1 to 16, --rate over 0 and up to 10000")
    if not args.no_plots and not available():
        print(f"soak: {INSTALL}", file=sys.stderr)
        return 3
    wave = args.wave or min(60.0, max(2.0, seconds / 30.0))
    plan = replace(PLANS["soak"], seconds=max(0.2, wave), rate=args.rate, patience=60.0)
    record = Record(args.out / "soak.csv")
    why, took = "", 0.0
    try:
        record.begin()
        with Rig() as rig:
            soak = Soak(start(rig, args.nodes), record, plan, args.seed)
            begun = time.monotonic()
            try:
                uvloop.run(soak.run(seconds))
            except TargetDown as error:
                why = str(error)
            took = time.monotonic() - begun
    except (RigError, ConfigError, OSError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 4
    text, code = told(record, soak, took)
    (args.out / "verdict.md").write_text(text + "\n")
    print(text)
    if not args.no_plots and record.courses:
        draw(record, args.out / "soak.png")
    print(f"\n{args.out}/soak.csv" + ("" if args.no_plots else f", {args.out}/soak.png"))
    if why:
        print(f"soak: ended early: {why}", file=sys.stderr)
        return 4
    return code


if __name__ == "__main__":
    sys.exit(main())
