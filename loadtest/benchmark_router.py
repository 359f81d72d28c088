"""What a router costs: unary gRPC calls through it and around it, in interleaved rounds.

    python loadtest/benchmark_router.py --requests 10000 --threads 8
    python loadtest/benchmark_router.py --requests 20000 --threads 64 --peers

It starts canned nodes and a router on loopback, sends ``--requests`` calls with ``--threads`` in flight to the router
and directly to a node, and prints mean, p50, p95 and p99 in milliseconds, the latency added over direct, calls a
second, and the CPU a call costs the router (user and system time of its process). A second table splits a call's time
by the router's own histograms: match and dispatch, relay in, node, relay out (of one call in 17). ``--peers`` adds
nginx's ``grpc_pass`` (where installed) and a pass-through written with ``grpc.aio``, in the same rounds; ``--plain``
adds a router that leaves the compiled hot path aside. A round of a target begins with a moment of load that is not
measured, and the targets take turns at being first. Client, router and nodes share the machine: compare within one run,
not between runs, and mind that each further node is a further process on the same cores.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import figures, stages
from loadtest.hop_client import HopClient, Sample, quantile
from loadtest.rig import MODEL, Rig, RigError, cpu_seconds
from loadtest.rounds import WARM_LAP, Budget, turns

_ENDLESS = 1_000_000_000  # calls


@dataclass
class Target(figures.Target):
    """Something that takes calls, and what it has shown so far."""

    times: dict[str, stages.Times] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    cpu: float = 0.0

    def figures(self) -> dict[str, float]:
        """Medians over the rounds: latencies in ms, calls a second, CPU microseconds a call."""
        rounds = [s for s in self.samples if s.latencies]
        calls = sum(len(s.latencies) for s in rounds)

        def middle(values: list[float]) -> float:
            return statistics.median(values) if values else float("nan")

        return {
            "mean_ms": middle([statistics.fmean(s.latencies) * 1e3 for s in rounds]),
            "p50_ms": middle([quantile(s.latencies, 0.50) * 1e3 for s in rounds]),
            "p95_ms": middle([quantile(s.latencies, 0.95) * 1e3 for s in rounds]),
            "p99_ms": middle([quantile(s.latencies, 0.99) * 1e3 for s in rounds]),
            "calls_per_second": middle([s.rate for s in rounds]),
            "cpu_us_per_call": self.cpu / calls * 1e6 if calls and self.pids else float("nan"),
            "errors": float(sum(s.errors for s in self.samples)),
        }


def start(rig: Rig, nodes: int, peers: bool, plain: bool) -> list[Target]:
    """The processes of one run."""
    addresses = rig.nodes(nodes)
    router, pid, admin = rig.router(addresses)
    targets = [Target("direct", addresses[0]), Target("laya", router, [pid], admin)]
    if plain:
        router, pid, admin = rig.router(addresses, env={"LAYA_PLAIN": "1"})
        targets.append(Target("plain", router, [pid], admin))
    if peers:
        nginx = rig.nginx(addresses)
        if nginx is None:
            print("nginx is not installed: left out", file=sys.stderr)
        else:
            targets.append(Target("nginx", *nginx))
        proxy, proxy_pid, _ = rig.python("loadtest.grpcaio_proxy", "--node", addresses[0])
        targets.append(Target("grpc.aio", proxy, [proxy_pid]))
    return targets


async def measure(targets: list[Target], requests: int, threads: int, rounds: int, metadata: bool) -> None:
    """Interleaved rounds over all targets."""
    clients = [HopClient(t.address, MODEL, metadata=metadata) for t in targets]
    try:
        for client in clients:
            await client.connect()
            await client.load(threads, threads)
        before = {target.name: stages.read(target.admin) for target in targets if target.admin}
        per_round = max(threads, requests // rounds)
        pairs = list(zip(targets, clients, strict=True))
        for target, client in turns(pairs, rounds, Budget(math.inf), "rounds", WARM_LAP):
            await client.load(_ENDLESS, threads, seconds=WARM_LAP)
            used = cpu_seconds(target.pids)
            target.samples.append(await client.load(per_round, threads))
            target.cpu += cpu_seconds(target.pids) - used
        for target in targets:
            if target.admin:
                target.times = stages.between(before[target.name], stages.read(target.admin))
    finally:
        for client in clients:
            await client.close()


def report(targets: list[Target], threads: int) -> list[dict[str, object]]:
    """Rows with the latency added over direct."""
    base = targets[0].figures()
    rows: list[dict[str, object]] = []
    for target in targets:
        figures = target.figures()
        row: dict[str, object] = {"target": target.name, "in_flight": threads, **figures}
        row["added_p50_ms"] = figures["p50_ms"] - base["p50_ms"]
        if target.times:
            row["split"] = stages.rows(target.times)
        rows.append(row)
    return rows


def show(rows: list[dict[str, object]]) -> None:
    """The table."""
    columns = ["mean_ms", "p50_ms", "p95_ms", "p99_ms", "added_p50_ms", "calls_per_second", "cpu_us_per_call", "errors"]
    print("target     " + "".join(f"{c:>18}" for c in columns))
    for row in rows:
        cells = "".join(
            f"{row[c]:>18.0f}" if c in ("calls_per_second", "errors") else f"{row[c]:>18.3f}" for c in columns
        )
        print(f"{row['target']:<11}{cells}")
    for row in rows:
        split = row.get("split")
        if isinstance(split, list):
            print(f"\n{row['target']}: where a call's time goes, by the router's own histograms")
            stages.show(split)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=8, help="calls in flight")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--plain", action="store_true", help="add a router whose hot path is plain Python")
    parser.add_argument("--no-metadata", action="store_true", help="make the router scan each message")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if min(args.requests, args.threads, args.nodes, args.rounds) < 1 or args.threads > 4000:
        parser.error("--requests, --threads (at most 4000), --nodes and --rounds must be 1 or more")
    try:
        with Rig() as rig:
            targets = start(rig, args.nodes, args.peers, args.plain)
            uvloop.run(measure(targets, args.requests, args.threads, args.rounds, not args.no_metadata))
    except (RigError, TimeoutError) as e:
        sys.exit(f"benchmark_router: {e}")
    rows = report(targets, args.threads)
    if args.json:
        print(json.dumps(rows))
    else:
        print(
            f"{args.requests} calls, {args.threads} in flight, {args.nodes} canned nodes, "
            f"medians of {args.rounds} rounds"
        )
        show(rows)
    if any(row["errors"] for row in rows):
        sys.exit("some calls failed")


if __name__ == "__main__":
    main()
