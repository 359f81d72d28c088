"""Laya beside other routers before the same nodes, in interleaved rounds: their own cost, and how well they schedule.

    python -m loadtest.bench_peers [--only scheduling,overhead] [--peers smg,nginx] [--rounds 2] [--seconds 3] [--json]

``scheduling`` sends the plans of ``laya bench`` (shared prefixes, a burst, one slow node, one node dying) through each
router to simulated nodes. Laya speaks gRPC to them; the others speak HTTP to the nodes' own port. No session name is
sent: every router sees the prompts only. ``overhead`` is a short form of bench_http.py: closed loops on canned nodes.
In each round another router begins, each after a moment of load that is not measured.
nginx, haproxy and Envoy (least connections) know nothing of models: they are the floor. Peers that are not installed
are left out; ``--install-peers`` installs the Python packages among them. All of it keeps within ``--budget`` seconds:
what does not fit is left out and said.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import bench_http
from loadtest.bench.client import Client
from loadtest.bench.cluster import Own, start_nodes
from loadtest.bench.drive import drive
from loadtest.bench.plan import Plan
from loadtest.bench.plans import PLANS
from loadtest.bench.report import figures
from loadtest.bench.run import quick
from loadtest.bench.watch import Watched, page
from loadtest.bench.work import Asked, body, requests
from loadtest.figures import Aim, Table, Target, ratio, show
from loadtest.peers import ALL, await_answer, package
from loadtest.peers_setup import find, install_all, missing, versions
from loadtest.rig import Rig, RigError, quiet
from loadtest.rounds import WARM_LAP, Budget, turns
from shared.tasks import cancel_all

SCENARIOS = ("prefix", "burst", "slow-node", "dying-node")
SECTIONS = ("scheduling", "overhead")
USUAL = ("smg", "sglang-router", "vllm-router", "envoy", "nginx")
_COLUMNS = (
    "ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "good_per_second", "good_percent", "cached_percent", "refused",
    "errors",
)  # fmt: skip
_OVERHEAD = ("1", "64")
_PATIENCE = 10.0
_WARM_CLIENTS, _WARM_LIMIT = 4, 5.0
_MODEL = "sim"
_NO_TOKEN = {"LAYA_SERVER__CLUSTER_TOKEN": ""}
_HEADING = """## Beside other routers, before the same nodes

Simulated nodes, four of them; every router gets the same requests at the same times, in words of its own, whether or
not it keeps up. Laya asks the nodes by gRPC, the others by HTTP at the nodes' own port; nobody gets a session's name.
`good` is an answer whose first token came within a second and whose tokens came at 0.1 s each or faster; `cached` is
the share of prompt tokens that a node found in its cache. nginx and Envoy (least connections) know nothing of models.
"""


def targets_of(rig: Rig, wanted: Sequence[str], nodes: Sequence[str]) -> tuple[list[Target], str]:
    """Laya and the peers before the same nodes, and the private address of Laya's router."""
    address, pid, admin = rig.router(nodes, env=_NO_TOKEN)
    targets = [Target("laya", address, [pid])]
    hello = body(Asked(0.0, "", "hello", 1, 1), _MODEL)
    for name in wanted:
        try:
            where, pids = ALL[name](rig, nodes)
            await_answer(where, hello)
        except RigError as error:
            print(f"{name} does not start: left out ({error})", file=sys.stderr)
            continue
        targets.append(Target(name, where, pids))
    return targets, admin


async def warm_lap(client: Client) -> None:
    """A moment of short requests that nobody counts: the router slept while the others had their turn."""
    short = body(Asked(0.0, "", "hello", 1, 1), _MODEL)
    until = time.perf_counter() + WARM_LAP

    async def work() -> None:
        while time.perf_counter() < until:
            await client.ask(short, limit=_WARM_LIMIT)

    await asyncio.gather(*(work() for _ in range(_WARM_CLIENTS)))


async def one_run(own: Own, target: Target, plan: Plan, number: int) -> dict[str, float]:
    """The figures of one round through one router; every router gets the same requests, in words of its own."""
    asked = await asyncio.to_thread(requests, plan, number, f"{target.name} {number}", 2.0)
    client = Client(target.address)
    await warm_lap(client)
    death = asyncio.create_task(own.kill_one(plan.nodes)) if plan.nodes.kill else None
    try:
        driven = await drive(client, asked, plan, _MODEL, time.perf_counter() + plan.seconds + plan.patience)
    finally:
        await cancel_all([death])
        client.close()
    f = figures(driven.rows, driven.gaps, driven.seconds, plan)
    return {
        "ttft_mean_ms": f["ttft_mean"],
        "ttft_p50_ms": f["ttft_p50"],
        "ttft_p99_ms": f["ttft_p99"],
        "good_per_second": f["goodput"],
        "good_percent": f["good_share"],
        "cached_percent": f["prefix_hits"],
        "refused": f["refused"],
        "errors": f["failed"] + f["not_sent"],
    }


async def back_again(own: Own, limit: float = 15.0) -> None:
    """Until every node answers for itself and Laya's router has it; the others have their own ways to notice."""
    deadline = time.monotonic() + limit
    for node in own.nodes:
        while time.monotonic() < deadline:
            try:
                await page(node.address, "/readyz")
                break
            except OSError:
                await asyncio.sleep(0.05)
    await own.settle(max(0.0, deadline - time.monotonic()))


async def rounds_of(
    own: Own, targets: Sequence[Target], plan: Plan, table: Table, rounds: int, seed: int, budget: Budget
) -> None:
    """Rounds in turns; a different router begins each."""
    for at, target in enumerate(turns(targets, rounds, budget, plan.name, WARM_LAP + plan.seconds)):
        table.add(plan.name, target.name, **await one_run(own, target, plan, seed + at // len(targets)))
        if plan.nodes.kill:
            await back_again(own)
        await asyncio.to_thread(quiet, [node.pid for node in own.nodes], 0.5)


def scheduling(
    wanted: Sequence[str], names: Sequence[str], rounds: int, seconds: float, seed: int, budget: Budget
) -> Table:
    """All scenarios in one table."""
    around = 0.0  # seconds that it takes to start and stop everything for a scenario
    table = Table("Scheduling on simulated nodes, open-loop load", _COLUMNS)
    for at, name in enumerate(names):
        plan = replace(quick(PLANS[name], None, seconds, None), patience=_PATIENCE)
        # A share of what is left each, so that a slow scenario does not take all from the last.
        share = budget.left / (len(names) - at)
        if not Budget(share).allows(name, around + seconds * (1 + len(wanted))):
            continue
        began = time.monotonic()
        with Rig() as rig:
            nodes = start_nodes(rig, plan, _NO_TOKEN)
            targets, admin = targets_of(rig, wanted, [node.address for node in nodes])
            own = Own(rig, targets[0].address, Watched(admin), nodes)
            around = time.monotonic() - began
            uvloop.run(rounds_of(own, targets, plan, table, rounds, seed, Budget(share - around)))
            ended = time.monotonic()
            for target in targets[1:]:  # some drain for long, and nothing of theirs is worth waiting for
                for pid in target.pids[:1]:
                    rig.kill(pid)
        around += time.monotonic() - ended
    return table


def overhead(wanted: Sequence[str], rounds: int, budget: Budget) -> list[Table]:
    """Closed loops on canned nodes."""
    with Rig() as rig:
        targets, backends = bench_http.start(rig, wanted, ["--messages", str(bench_http.EVENTS)])
        return bench_http.closed_loops(targets, backends, [bench_http.LOADS[k] for k in _OVERHEAD], 1.0, rounds, budget)


def aims(table: Table) -> list[Aim]:
    """Laya beside the best of the LLM routers in each scenario."""
    found: list[Aim] = []
    for name in dict.fromkeys(scenario for scenario, _ in table.cells):
        peers = [t for s, t in table.cells if s == name and t in bench_http.LLM_ROUTERS]
        for figure, heading, above in (
            ("ttft_mean_ms", "TTFT mean", False),
            ("ttft_p99_ms", "TTFT p99", False),
            ("good_per_second", "good answers/s", True),
        ):
            ratios = [(ratio(table, name, figure, "laya", peer), peer) for peer in peers]
            known = [one for one in ratios if one[0] == one[0]]
            if known:
                value, peer = (min if above else max)(known)
                found.append(Aim(f"{name}: {heading} over the best LLM router's ({peer})", round(value, 3), 1.0, above))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    args = _arguments(argv)
    wanted = [p for p in args.peers.split(",") if p]
    if args.install_peers:
        install_all(sorted({package(p) for p in wanted}))
    for name in dict.fromkeys(package(p) for p in wanted):
        if not find(name):
            print(missing(name), file=sys.stderr)
    wanted = [p for p in wanted if find(package(p))]
    load, budget = os.getloadavg()[0], Budget(args.budget)
    tables: list[Table] = []
    goals: list[Aim] = []
    try:
        if "overhead" in args.only:
            tables += overhead(wanted, args.rounds, budget)
        if "scheduling" in args.only:
            table = scheduling(wanted, args.scenarios, args.rounds, args.seconds, args.seed, budget)
            tables.append(table)
            goals = aims(table)
    except (RigError, OSError) as error:
        sys.exit(f"bench_peers: {error or 'a round did not end in time'}")
    tables = [t for t in tables if t.cells]
    if not args.json:
        print(_HEADING)
    command = " ".join(["python -m loadtest.bench_peers", *(argv or sys.argv[1:])])
    show(tables, goals, load, args.json, command, versions(wanted))
    if not tables:
        sys.exit("bench_peers: the budget allowed nothing")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_several(SECTIONS), default=list(SECTIONS), help="with commas")
    parser.add_argument("--scenarios", type=_several(SCENARIOS), default=list(SCENARIOS), help="with commas")
    parser.add_argument("--peers", default=",".join(USUAL), help=f"of {', '.join(ALL)}; empty for none")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round of scheduling")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=345.0, help="seconds for all of it, about")
    parser.add_argument("--install-peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if unknown := {p for p in args.peers.split(",") if p} - set(ALL):
        parser.error(f"--peers: no {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    if not 1 <= args.rounds <= 100 or not 0.5 <= args.seconds <= 60 or not 1 <= args.budget <= 86_400:
        parser.error("--rounds must be 1 to 100, --seconds 0.5 to 60, --budget 1 to 86400")
    return args


def _several(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    main()
