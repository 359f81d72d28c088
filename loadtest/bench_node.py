"""What a streamed message costs a node's server: the node's own gRPC server beside ``grpc.aio``.

    python loadtest/bench_node.py [--seconds 1] [--rounds 3] [--streams 256] [--json]

The same handler runs on both (loadtest/node_server.py): in steps, as an engine gives tokens to all its streams at once,
and as fast as it goes. In each round the other one begins, each after a moment of load that is not measured. CPU is all
of the server's process, the handler's own share included; no engine runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.figures import Aim, Table, Target, ratio, show
from loadtest.hop_client import HopClient
from loadtest.hop_paced import SETTLE, messages, paced
from loadtest.node_server import KINDS
from loadtest.rig import MODEL, Rig, RigError, cpu_seconds
from loadtest.rounds import WARM_LAP, Budget, turns

PACE = 0.025
BULK_STREAMS, BULK_MESSAGES = 16, 64
BUDGET = 345.0
_ENDLESS = 1 << 60
_COLUMNS = ("messages_per_second", "cpu_us_per_message", "delay_p50_ms", "delay_p99_ms", "errors")


async def in_steps(
    table: Table, targets: list[Target], streams: int, seconds: float, rounds: int, budget: Budget
) -> None:
    """Streams at the pace of a model; they settle before anything is counted."""
    clients = [HopClient(t.address, MODEL) for t in targets]
    try:
        for client in clients:
            await client.connect()
        name = f"{streams} streams, {1 / PACE:.0f} steps/s"
        pairs = list(zip(targets, clients, strict=True))
        for target, client in turns(pairs, rounds, budget, name, SETTLE + seconds):
            table.add(name, target.name, **await paced(client, target.pids, streams, seconds))
    finally:
        for client in clients:
            await client.close()


async def at_once(table: Table, targets: list[Target], seconds: float, rounds: int, budget: Budget) -> None:
    """Streams as fast as they go."""
    clients = [HopClient(t.address, MODEL) for t in targets]
    try:
        for client in clients:
            await client.connect()
            await client.load(BULK_STREAMS, BULK_STREAMS, stream=True)
        name = f"{BULK_STREAMS} streams of {BULK_MESSAGES} at once"
        pairs = list(zip(targets, clients, strict=True))
        for target, client in turns(pairs, rounds, budget, name, WARM_LAP + seconds):
            await client.load(_ENDLESS, BULK_STREAMS, stream=True, seconds=WARM_LAP)
            used = cpu_seconds(target.pids)
            sample = await client.load(_ENDLESS, BULK_STREAMS, stream=True, seconds=seconds)
            used = cpu_seconds(target.pids) - used
            came = len(sample.latencies) * BULK_MESSAGES
            table.add(
                name,
                target.name,
                messages_per_second=came / sample.seconds,
                cpu_us_per_message=used / came * 1e6 if came else float("nan"),
                errors=float(sample.errors),
            )
    finally:
        for client in clients:
            await client.close()


def start(rig: Rig, pace: float, length: int) -> list[Target]:
    """Both servers."""
    targets = []
    for kind in KINDS:
        args = ["--kind", kind, "--pace", str(pace), "--messages", str(length)]
        address, pid, _ = rig.python("loadtest.node_server", *args)
        targets.append(Target(kind, address, [pid]))
    return targets


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one round of one server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not 0 < args.seconds <= 60 or not 1 <= args.rounds <= 100 or not 1 <= args.streams <= 1000:
        parser.error("--seconds must be up to 60, --rounds from 1 to 100, --streams from 1 to 1000")
    load, budget = os.getloadavg()[0], Budget(BUDGET)
    table = Table("A node's server, per streamed message", _COLUMNS, base="grpc.aio")
    try:
        with Rig() as rig:
            targets = start(rig, PACE, messages(PACE, args.seconds))
            uvloop.run(in_steps(table, targets, args.streams, args.seconds, args.rounds, budget))
        with Rig() as rig:
            uvloop.run(at_once(table, start(rig, 0.0, BULK_MESSAGES), args.seconds, args.rounds, budget))
    except (RigError, TimeoutError) as e:
        sys.exit(f"bench_node: {e or 'a round did not end in time'}")
    scenarios = dict.fromkeys(s for s, _ in table.cells)
    found = [
        Aim(f"CPU a message over grpc.aio's, {s}", ratio(table, s, "cpu_us_per_message", *KINDS), 1.0)
        for s in scenarios
    ]
    show([table], found, load, args.json, " ".join(["python loadtest/bench_node.py", *sys.argv[1:]]))
    if table.errors:
        sys.exit(f"bench_node: {table.errors} calls failed")


if __name__ == "__main__":
    main()
