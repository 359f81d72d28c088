"""What a gRPC hop costs: Laya's router beside nginx, Envoy and a ``grpc.aio`` pass-through, in interleaved rounds.

    python loadtest/bench_hop.py [--seconds 1] [--rounds 3] [--only unary,bulk,paced,size] [--json]

One client and canned nodes at the speed of the network layer; between them nothing (``direct``), the router, or a
peer. In each round another target begins, each after a moment of load that is not measured. Figures are medians over
the rounds; CPU is user and system time of the hop's processes. Client, hop and nodes share the machine: compare within
one table, and trust CPU first, it depends least on what else runs. Peers that are not installed are left out with a
line that says so (``--install-peers`` installs Envoy into an environment of its own), and so is what does not fit into
``--budget`` seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import hop_size, peers
from loadtest.figures import Aim, Table, Target, ratio, show
from loadtest.hop_client import HopClient, Sample, quantile
from loadtest.hop_paced import SETTLE, messages, paced
from loadtest.peers_setup import find, install_all, missing, versions
from loadtest.rig import MODEL, Rig, RigError, cpu_seconds
from loadtest.rounds import WARM_LAP, Budget, turns

PEERS = ("nginx", "envoy", "grpc.aio")
SECTIONS = ("unary", "bulk", "paced", "size")
IN_FLIGHT = (1, 8, 64)
NODES = 2
BULK_STREAMS = 16
BULK_MESSAGES = (64, 512)  # of a stream: the first is mostly the price of a call, the second of its messages
PACE = 0.025  # seconds between messages: 40 a second, a fast model's tokens
_WARM_UP = 300
_ENDLESS = 1 << 60
BUDGET = 345.0
_SIZE_TAKES = 40.0  # about, on a quiet machine, without the rounds

_CALLS = ("p50_ms", "p99_ms", "added_p50_ms", "calls_per_second", "cpu_us_per_call", "errors")
_BULK = ("messages_per_second", "cpu_us_per_message", "errors")
_PACED = (
    "messages_per_second",
    "cpu_us_per_message",
    "delay_p50_ms",
    "added_delay_p50_ms",
    "added_delay_p99_ms",
    "errors",
)


def start(rig: Rig, wanted: Sequence[str], node_args: Sequence[str]) -> list[Target]:
    """Canned nodes and everything that is wanted in front of them."""
    nodes = rig.nodes(NODES, *node_args)
    router, pid, _ = rig.router(nodes)
    targets = [Target("direct", nodes[0]), Target("laya", router, [pid])]
    nginx = rig.nginx(nodes) if "nginx" in wanted else None
    if nginx is not None:
        targets.append(Target("nginx", *nginx))
    if "envoy" in wanted:
        targets.append(Target("envoy", *peers.envoy_grpc(rig, nodes)))
    if "grpc.aio" in wanted:
        proxy, proxy_pid, _ = rig.python("loadtest.grpcaio_proxy", "--node", nodes[0])
        targets.append(Target("grpc.aio", proxy, [proxy_pid]))
    return targets


async def _connect(targets: Sequence[Target], warm_up: int) -> list[HopClient]:
    clients = [HopClient(t.address, MODEL) for t in targets]
    for client in clients:
        await client.connect()
        if warm_up:
            await client.load(warm_up, 8)
    return clients


async def _close(clients: Sequence[HopClient]) -> None:
    for client in clients:
        await client.close()


async def unary_calls(targets: list[Target], seconds: float, rounds: int, budget: Budget) -> Table:
    """A closed loop at each number in flight."""
    calls = Table("Unary calls, closed loop", _CALLS)
    clients = await _connect(targets, _WARM_UP)
    pairs = list(zip(targets, clients, strict=True))
    try:
        for in_flight in IN_FLIGHT:
            name = f"{in_flight} in flight"
            for target, client in turns(pairs, rounds, budget, name, WARM_LAP + seconds):
                sample, used = await _round(target, client, in_flight, seconds, stream=False)
                done = len(sample.latencies)
                calls.add(
                    name,
                    target.name,
                    p50_ms=quantile(sample.latencies, 0.50) * 1e3,
                    p99_ms=quantile(sample.latencies, 0.99) * 1e3,
                    calls_per_second=sample.rate,
                    cpu_us_per_call=used / done * 1e6 if done and target.pids else float("nan"),
                    errors=float(sample.errors),
                )
    finally:
        await _close(clients)
    return calls


async def bulk_streams(
    table: Table, targets: list[Target], messages: int, seconds: float, rounds: int, budget: Budget
) -> None:
    """Streams of so many messages as fast as they go."""
    name = f"{messages} messages each"
    clients = await _connect(targets, 0)
    pairs = list(zip(targets, clients, strict=True))
    try:
        for target, client in turns(pairs, rounds, budget, f"bulk, {name}", WARM_LAP + seconds):
            sample, used = await _round(target, client, BULK_STREAMS, seconds, stream=True)
            came = len(sample.latencies) * messages
            table.add(
                name,
                target.name,
                messages_per_second=came / sample.seconds,
                cpu_us_per_message=used / came * 1e6 if came and target.pids else float("nan"),
                errors=float(sample.errors),
            )
    finally:
        await _close(clients)


async def _round(
    target: Target, client: HopClient, in_flight: int, seconds: float, stream: bool
) -> tuple[Sample, float]:
    """One round of one target, after a lap that is not measured; and the CPU seconds that it took."""
    await client.load(_ENDLESS, in_flight, stream=stream, seconds=WARM_LAP)
    used = cpu_seconds(target.pids)
    sample = await client.load(_ENDLESS, in_flight, stream=stream, seconds=seconds)
    return sample, cpu_seconds(target.pids) - used


async def paced_streams(targets: list[Target], streams: int, seconds: float, rounds: int, budget: Budget) -> Table:
    """Streams at the pace of a model; they settle before anything is counted."""
    table = Table(f"{streams} streams at {1 / PACE:.0f} messages/s each", _PACED)
    clients = await _connect(targets, 0)
    try:
        pairs = list(zip(targets, clients, strict=True))
        for target, client in turns(pairs, rounds, budget, "paced", SETTLE + seconds):
            table.add("paced", target.name, **await paced(client, target.pids, streams, seconds))
    finally:
        await _close(clients)
    return table


def aims(tables: Sequence[Table]) -> list[Aim]:
    """What this project wants of its hop, from the tables that were made."""
    found: list[Aim] = []
    for table in tables:
        for scenario in dict.fromkeys(s for s, _ in table.cells):
            found += _aims(table, scenario)
    return found


def _aims(table: Table, scenario: str) -> list[Aim]:
    def over(figure: str, theirs: str = "nginx") -> float:
        return ratio(table, scenario, figure, "laya", theirs)

    if scenario == "1 in flight":
        return [Aim("added p50 at 1 in flight, ms", table.get(scenario, "laya", "added_p50_ms"), 0.1)]
    if scenario == "8 in flight":
        return [Aim("p50 at 8 over nginx's", over("p50_ms"), 1.0)]
    if scenario == "64 in flight":
        return [
            Aim("p50 at 64 over nginx's", over("p50_ms"), 1.0),
            Aim("calls/s at 64 over nginx's", over("calls_per_second"), 1.0, above=True),
            Aim("calls/s at 64 over grpc.aio's", over("calls_per_second", "grpc.aio"), 5.0, above=True),
            Aim("CPU a call at 64 over nginx's", over("cpu_us_per_call"), 2.0),
        ]
    if table.title.startswith("Bulk"):
        return [Aim(f"bulk messages/s over nginx's, {scenario}", over("messages_per_second"), 0.9, above=True)]
    return []


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one round of one target")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=256, help="paced streams at once")
    parser.add_argument("--calls", type=int, default=100_000, help="calls over which memory must not grow")
    parser.add_argument("--many", type=int, default=1000, help="nodes, streams and connections of the larger case")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections to run, with commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="peers to run, with commas; empty for none")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all of it, about")
    parser.add_argument("--install-peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sections, wanted = args.only.split(","), [p for p in args.peers.split(",") if p]
    for given, known, flag in ((sections, SECTIONS, "--only"), (wanted, PEERS, "--peers")):
        if unknown := set(given) - set(known):
            parser.error(f"{flag}: no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if (
        not 0 < args.seconds <= 60
        or not 1 <= args.budget <= 86_400
        or not 1 <= args.rounds <= 100
        or not 1 <= args.streams <= 1000
    ):
        parser.error("--seconds must be up to 60, --rounds 1 to 100, --streams 1 to 1000, --budget 1 to 86400")
    if not 20 <= args.many <= 2000 or args.calls < 100:
        parser.error("--many must be from 20 to 2000, --calls 100 or more")
    if args.install_peers:
        install_all(wanted)
    for name in [p for p in wanted if p != "grpc.aio" and not find(p)]:
        print(missing(name), file=sys.stderr)
        wanted.remove(name)
    load, budget = os.getloadavg()[0], Budget(args.budget)
    tables: list[Table] = []
    try:
        if "unary" in sections:
            with Rig() as rig:
                tables.append(uvloop.run(unary_calls(start(rig, wanted, []), args.seconds, args.rounds, budget)))
        if "bulk" in sections:
            bulk = Table(f"Bulk: {BULK_STREAMS} streams at a time", _BULK)
            tables.append(bulk)
            for length in BULK_MESSAGES:
                with Rig() as rig:
                    targets = start(rig, wanted, ["--messages", str(length)])
                    uvloop.run(bulk_streams(bulk, targets, length, args.seconds, args.rounds, budget))
        if "paced" in sections:
            with Rig() as rig:
                length = messages(PACE, args.seconds)
                targets = start(rig, wanted, ["--pace", str(PACE), "--messages", str(length)])
                tables.append(uvloop.run(paced_streams(targets, args.streams, args.seconds, args.rounds, budget)))
        if "size" in sections and budget.allows("size", _SIZE_TAKES):
            tables += hop_size.run(args.seconds, args.rounds, args.calls, args.many, budget)
    except (RigError, TimeoutError) as e:
        sys.exit(f"bench_hop: {e or 'a round did not end in time'}")
    tables = [table for table in tables if table.cells]
    command = " ".join(["python loadtest/bench_hop.py", *sys.argv[1:]])
    show(tables, aims(tables), load, args.json, command, versions([p for p in wanted if p != "grpc.aio"]))
    if failed := sum(t.errors for t in tables):
        sys.exit(f"bench_hop: {failed} calls failed")


if __name__ == "__main__":
    main()
