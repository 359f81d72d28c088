"""What it costs that streams can go on elsewhere, while nothing fails.

    python loadtest/bench_migration.py [--seconds 2] [--rounds 5] [--streams 256] [--held 800] [--json]

Three routers in front of canned nodes, in turns: with ``router.migration`` off, on with nodes that grant no journal,
and on with nodes that do. Streams come at the pace of a model, over gRPC and as SSE over HTTP/1.1; CPU is all of the
router's process. Memory is what the router's process grows by while so many streams are held open, each on a fresh
router, over their number; what journals set aside of their own bound is beside it.

It takes about two minutes; what it does is said on standard error meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import http_load
from loadtest.figures import Aim, Table, Target, ratio, show
from loadtest.hop_client import HopClient
from loadtest.hop_paced import SETTLE, Count, Paced, messages, paced
from loadtest.rig import MODEL, Rig, RigError, cpu_seconds, rss_bytes

PACE = 0.025  # seconds between the messages of a stream
HELD_PACE = 0.5  # of those that are only held
PER_CONNECTION = 400
OFF, ASKED, ON = "off", "on, not granted", "on"
_STREAMS = ("messages_per_second", "cpu_us_per_message", "delay_p50_ms", "delay_p99_ms", "errors")
_MEMORY = ("rss_kib_per_stream", "set_aside_kib_per_stream", "errors")


@dataclass(frozen=True)
class Form:
    """A router and the nodes behind it."""

    name: str
    enabled: bool
    granted: bool


FORMS = (Form(OFF, False, False), Form(ASKED, True, False), Form(ON, True, True))


def start(rig: Rig, form: Form, pace: float, length: int) -> tuple[Target, str]:
    """A router in front of two nodes of its own; its private address beside it."""
    args = ["--pace", str(pace), "--messages", str(length), *(["--journal"] if form.granted else [])]
    env = {"LAYA_ROUTER__MIGRATION__ENABLED": "true" if form.enabled else "false"}
    address, pid, admin = rig.router(rig.nodes(2, *args), env=env)
    return Target(form.name, address, [pid]), admin


async def over_grpc(table: Table, targets: Sequence[Target], streams: int, seconds: float, rounds: int) -> None:
    """Typed streams."""
    clients = [HopClient(target.address, MODEL) for target in targets]
    try:
        for client in clients:
            await client.connect()
        for number in range(rounds):
            say(f"gRPC, round {number + 1} of {rounds}")
            for target, client in zip(targets, clients, strict=True):
                table.add("gRPC", target.name, **await paced(client, target.pids, streams, seconds))
    finally:
        for client in clients:
            await client.close()


async def over_http(table: Table, targets: Sequence[Target], streams: int, seconds: float, rounds: int) -> None:
    """OpenAI streams."""
    for number in range(rounds):
        say(f"SSE, round {number + 1} of {rounds}")
        for target in targets:

            def used(pids: Sequence[int] = target.pids) -> float:
                return cpu_seconds(pids)

            got = await http_load.paced(target.address, streams, SETTLE, seconds, used)
            table.add(
                "SSE",
                target.name,
                messages_per_second=got["chunks_per_second"],
                cpu_us_per_message=got["cpu_us_per_chunk"],
                delay_p50_ms=got["delay_p50_ms"],
                delay_p99_ms=got["delay_p99_ms"],
                errors=got["errors"],
            )


async def held(table: Table, target: Target, admin: str, streams: int, seconds: float) -> None:
    """What the router grows by while streams are open."""
    loop = asyncio.get_running_loop()
    clients = [HopClient(target.address, MODEL) for _ in range(-(-streams // PER_CONNECTION))]
    count = Count()
    try:
        for client in clients:
            await client.connect()
        await _hold(clients, count, loop, 16)
        before = rss_bytes(target.pids[0])
        refused = await _hold(clients, count, loop, streams)
        await asyncio.sleep(seconds)
        grown = rss_bytes(target.pids[0]) - before
        aside = await asyncio.to_thread(_metric, admin, "laya_router_journal_bytes")
    finally:
        for client in clients:
            await client.close()
    table.add(
        f"{streams} streams held",
        target.name,
        rss_kib_per_stream=grown / streams / 1024,
        set_aside_kib_per_stream=aside / (streams + 16) / 1024,
        errors=float(refused),
    )


async def _hold(clients: Sequence[HopClient], count: Count, loop: asyncio.AbstractEventLoop, streams: int) -> int:
    """Open streams that nobody waits for; how many were refused."""
    refused = 0
    for i in range(streams):
        sink = Paced(count, loop.create_future())
        sink.stream = clients[i % len(clients)].open_stream(sink)
        refused += sink.stream is None
        if i % 16 == 15:
            await asyncio.sleep(0.005)
    await asyncio.sleep(SETTLE)
    return refused


def _metric(admin: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def say(line: str) -> None:
    """How far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one round of one router")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=256, help="at the pace of a model")
    parser.add_argument("--held", type=int, default=800, help="streams held open to see their memory")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not 0 < args.seconds <= 60 or not 1 <= args.rounds <= 100:
        parser.error("--seconds must be up to 60, --rounds from 1 to 100")
    if not 1 <= args.streams <= 900 or not 1 <= args.held <= 4000:
        parser.error("--streams must be from 1 to 900, --held from 1 to 4000")
    load = os.getloadavg()[0]
    streams = Table(f"{args.streams} streams at {1 / PACE:.0f} messages/s each", _STREAMS, base=OFF)
    memory = Table("Memory of a router with streams open", _MEMORY, base=OFF)
    try:
        say("starting three routers and their nodes")
        with Rig() as rig:
            targets = [start(rig, form, PACE, messages(PACE, args.seconds))[0] for form in FORMS]
            uvloop.run(over_grpc(streams, targets, args.streams, args.seconds, args.rounds))
            uvloop.run(over_http(streams, targets, args.streams, args.seconds, args.rounds))
        for form in FORMS:
            say(f"{args.held} streams held, migration {form.name}")
            with Rig() as rig:
                target, admin = start(rig, form, HELD_PACE, 1 << 16)
                uvloop.run(held(memory, target, admin, args.held, args.seconds))
    except (RigError, TimeoutError) as e:
        sys.exit(f"bench_migration: {e or 'a round did not end in time'}")
    found = [
        Aim(f"CPU a message over that with migration off, {scenario}, {name}", _over(streams, scenario, name), most)
        for scenario in ("gRPC", "SSE")
        for name, most in ((ASKED, 1.02), (ON, 1.25))
    ]
    command = " ".join(["python loadtest/bench_migration.py", *sys.argv[1:]])
    show([streams, memory], found, load, args.json, command)
    if streams.errors or memory.errors:
        sys.exit(f"bench_migration: {streams.errors + memory.errors} streams failed")


def _over(table: Table, scenario: str, name: str) -> float:
    return ratio(table, scenario, "cpu_us_per_message", name, OFF)


if __name__ == "__main__":
    main()
