"""What the OpenAI API costs through a router: Laya beside LLM routers and plain proxies, in interleaved rounds.

    python loadtest/bench_http.py [--seconds 1] [--rounds 3] [--peers smg,nginx] [--json] [--install-peers]

Laya asks canned gRPC nodes, the peers (HTTP only) canned HTTP backends; ``direct`` asks such a backend itself. Answers
are constant. Load is wrk's where it is installed. nginx, haproxy and Envoy look at no body and choose no model: they
are the floor. In each round another target begins, each after a moment of load that is not measured. Figures are
medians over the rounds. Everything shares the machine: from 8 in flight on, closed loops measure throughput rather than
latency; CPU per request depends least on what else runs. Peers that are not installed are left out with a line that
says so (``--install-peers`` installs the Python packages among them, each into an environment of its own), and so is
what does not fit into ``--budget`` seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import http_load, stages
from loadtest.figures import Aim, Table, Target, ratio, show
from loadtest.peers import HTTP, await_answer, package
from loadtest.peers_setup import find, install_all, missing, versions
from loadtest.rig import Rig, RigError, cpu_seconds, quiet
from loadtest.rounds import WARM_LAP, Budget, turns

BACKENDS = 2
EVENTS = 64
BUDGET = 345.0
PACE, SETTLE = 0.025, 0.6
LLM_ROUTERS = ("smg", "sglang-router", "vllm-router", "vllm-router/rr")
_CALLS = ("p50_ms", "p99_ms", "added_p50_ms", "calls_per_second", "cpu_us_per_call", "errors")
_STREAMS = ("chunks_per_second", "streams_per_second", "cpu_us_per_chunk", "errors")
_WORK = ("mean_us", "p50_us", "p95_us", "p99_us")
_PACED = (
    "chunks_per_second",
    "cpu_us_per_chunk",
    "delay_p50_ms",
    "added_delay_p50_ms",
    "added_delay_p99_ms",
    "errors",
)


@dataclass(frozen=True)
class Load:
    """One closed loop."""

    name: str
    in_flight: int
    stream: bool = False
    large: bool = False


LOADS = {
    "1": Load("1 in flight", 1),
    "8": Load("8 in flight", 8),
    "64": Load("64 in flight", 64),
    "512": Load("512 in flight, 16 KB", 512, large=True),
    "sse": Load(f"64 streams of {EVENTS} events", 64, stream=True),
}
SECTIONS = (*LOADS, "paced")


def start(rig: Rig, wanted: Sequence[str], args: Sequence[str]) -> tuple[list[Target], list[int]]:
    """Everything in front of canned nodes and backends, and the backends' pids.

    A peer that does not start is told and left out.
    """
    started = [rig.python("loadtest.canned_http", *args) for _ in range(BACKENDS)]
    backends = [address for address, _, _ in started]
    router, pid, admin = rig.router(rig.nodes(BACKENDS, *args))
    targets = [Target("direct", backends[0]), Target("laya", router, [pid], admin)]
    [body] = http_load.bodies()
    for name in wanted:
        try:
            address, pids = HTTP[name](rig, backends)
            await_answer(address, body)
        except RigError as error:
            print(f"{name} does not start: left out ({error})", file=sys.stderr)
            continue
        targets.append(Target(name, address, pids))
    return targets, [pid for _, pid, _ in started]


def closed_loops(
    targets: Sequence[Target],
    backends: Sequence[int],
    loads: Sequence[Load],
    seconds: float,
    rounds: int,
    budget: Budget,
) -> list[Table]:
    """All closed loops.

    A lap that is not measured wakes the target and opens its connections to the backends. After each round the target
    and its backends may finish what they still work on, so that it does not disturb the next one.
    """
    calls = Table("OpenAI chat completions, closed loop", _CALLS)
    streams = Table(f"SSE as fast as it goes: 64 streams of {EVENTS} events at a time", _STREAMS)
    work = Table("Laya's own work up to the choice of a node, of one request in 17", _WORK)
    for load in loads:
        sent = http_load.bodies(load.stream, load.large)
        for target in turns(targets, rounds, budget, load.name, WARM_LAP + seconds):
            http_load.warm_up(target.address, sent, load.in_flight, WARM_LAP)
            before = stages.read(target.admin) if target.admin else {}
            used = cpu_seconds(target.pids)
            got = http_load.closed_loop(target.address, sent, load.in_flight, seconds)
            used = cpu_seconds(target.pids) - used
            if target.admin:
                matched = stages.rows(stages.between(before, stages.read(target.admin)))[0]
                work.add(load.name, target.name, **{name: cast(float, matched[name]) for name in _WORK})
            quiet([*target.pids, *backends])
            done = got.pop("calls")
            each = used / done * 1e6 if done and target.pids else float("nan")
            if load.stream:
                streams.add(
                    load.name,
                    target.name,
                    chunks_per_second=got["calls_per_second"] * EVENTS,
                    streams_per_second=got["calls_per_second"],
                    cpu_us_per_chunk=each / EVENTS,
                    errors=got["errors"],
                )
            else:
                calls.add(load.name, target.name, cpu_us_per_call=each, **got)
    return [t for t in (calls, streams, work) if t.cells]


async def paced_streams(targets: Sequence[Target], streams: int, seconds: float, rounds: int, budget: Budget) -> Table:
    """SSE at the pace of a model; streams settle before anything is counted."""
    table = Table(f"{streams} SSE streams at {1 / PACE:.0f} events/s each", _PACED)
    for target in turns(targets, rounds, budget, "paced", SETTLE + seconds):

        def used(pids: Sequence[int] = target.pids) -> float:
            return cpu_seconds(pids)

        got = await http_load.paced(target.address, streams, SETTLE, seconds, used)
        if not target.pids:
            got["cpu_us_per_chunk"] = float("nan")
        table.add("paced", target.name, **got)
    return table


def aims(tables: Sequence[Table]) -> list[Aim]:
    """What this project wants of its HTTP side, from the tables that were made."""
    found: list[Aim] = []
    for table in tables:
        for scenario in dict.fromkeys(s for s, _ in table.cells):
            for peer in [p for s, p in table.cells if s == scenario and p not in ("direct", "laya")]:
                found += _against(table, scenario, peer)
    return found


def _against(table: Table, scenario: str, peer: str) -> list[Aim]:
    def over(figure: str) -> float:
        return ratio(table, scenario, figure, "laya", peer)

    chunks = "chunks_per_second"
    if "streams of" in scenario:
        return (
            [] if peer in ("nginx", "haproxy") else [Aim(f"SSE chunks/s over {peer}'s", over(chunks), 1.0, above=True)]
        )
    if scenario == "paced":
        return []
    if peer in LLM_ROUTERS:
        added = Aim(f"added p50 over {peer}'s, {scenario}", over("added_p50_ms"), 1.0)
        return [added, Aim(f"CPU per request over {peer}'s, {scenario}", over("cpu_us_per_call"), 1 / 3)]
    if peer == "envoy":
        return [Aim(f"calls/s over {peer}'s, {scenario}", over("calls_per_second"), 1.0, above=True)]
    return []


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of one round of one target (wrk: whole ones)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64, help="paced streams at once")
    parser.add_argument("--only", default=",".join(SECTIONS), help="loads to run, with commas")
    parser.add_argument("--peers", default=",".join(HTTP), help="peers to run, with commas; empty for none")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all of it, about")
    parser.add_argument("--install-peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sections, wanted = args.only.split(","), [p for p in args.peers.split(",") if p]
    for given, known, flag in ((sections, SECTIONS, "--only"), (wanted, tuple(HTTP), "--peers")):
        if unknown := set(given) - set(known):
            parser.error(f"{flag}: no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not 0 < args.seconds <= 60 or not 1 <= args.rounds <= 100 or not 1 <= args.streams <= 1000:
        parser.error("--seconds must be up to 60, --rounds from 1 to 100, --streams from 1 to 1000")
    if not 1 <= args.budget <= 86_400:
        parser.error("--budget must be from 1 to 86400")
    if args.install_peers:
        install_all(sorted({package(p) for p in wanted}))
    for name in dict.fromkeys(package(p) for p in (*wanted, "wrk")):
        if not find(name):
            print(missing(name), file=sys.stderr)
    wanted = [p for p in wanted if find(package(p))]
    load, budget = os.getloadavg()[0], Budget(args.budget)
    tables: list[Table] = []
    try:
        loads = [LOADS[s] for s in sections if s in LOADS]
        if loads:
            with Rig() as rig:
                targets, backends = start(rig, wanted, ["--messages", str(EVENTS)])
                tables += closed_loops(targets, backends, loads, args.seconds, args.rounds, budget)
        if "paced" in sections and budget.allows("paced", SETTLE + args.seconds):
            with Rig() as rig:
                length = int((SETTLE + args.seconds + 0.6) / PACE)
                targets, _ = start(rig, wanted, ["--pace", str(PACE), "--messages", str(length)])
                paced = paced_streams(targets, args.streams, args.seconds, args.rounds, budget)
                tables += [table for table in [uvloop.run(paced)] if table.cells]
    except (RigError, OSError) as e:  # TimeoutError is one
        sys.exit(f"bench_http: {e or 'a round did not end in time'}")
    command = " ".join(["python loadtest/bench_http.py", *sys.argv[1:]])
    show(tables, aims(tables), load, args.json, command, versions([*wanted, *(["wrk"] if find("wrk") else [])]))
    if failed := sum(t.errors for t in tables):
        sys.exit(f"bench_http: {failed} calls failed")


if __name__ == "__main__":
    main()
