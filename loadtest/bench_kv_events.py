"""What KV events cost the engine: two nodes with vLLM and the demo model, one of which tells of its cache.

    python -m loadtest.bench_kv_events [--rounds 4] [--seconds 12] [--at-once 4] [--kv-mib 48] [--json]

Both nodes run all the time, each behind a router of its own, and are loaded in turn: with events, without, without,
with, and so on, so that whatever else the machine does falls on both alike. Every prompt is a new one and memory is
small, so that the cache keeps evicting, which is when there is most to tell. Tokens a second are of the answers; CPU is
of the node and its engine, and hardly depends on what else runs. Takes less than three minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inference_node.quantize import demo
from loadtest.overload_load import Client, Prompt
from loadtest.rig import Rig, RigError, children, cpu_seconds

CONTEXT, SEQUENCES, NEW_TOKENS = 1024, 16, 24
START = 180.0  # seconds for a model to load
WARM_UP = 3.0  # seconds of load before anything is counted: a node's ramp, and a cache that is full
_MIB = 1 << 20
_WORDS = ("river", "bridge", "moon", "bread", "clock", "rain", "library", "engine", "market", "glass", "garden", "snow")


@dataclass(slots=True)
class Side:
    """One node: where clients go, its processes, and what each of its rounds gave."""

    name: str
    address: str
    pids: Sequence[int]
    tokens_per_second: list[float] = field(default_factory=list)
    cpu_per_request: list[float] = field(default_factory=list)  # seconds

    def rate(self) -> float:
        """Tokens a second, the median of its rounds."""
        return statistics.median(self.tokens_per_second)

    def cpu(self) -> float:
        """CPU seconds a request, the median of its rounds."""
        return statistics.median(self.cpu_per_request)


def order(rounds: int) -> list[tuple[int, int]]:
    """Which side is loaded when: 0 then 1, then the other way round, so that a drift falls on both alike."""
    return [(0, 1) if number % 2 == 0 else (1, 0) for number in range(rounds)]


def prompt(rng: random.Random) -> Prompt:
    """A new one of some 600 tokens."""
    return Prompt(" ".join(rng.choices(_WORDS, k=560)), True)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(one for child in children(pid) for one in family(child))]


async def load(side: Side, rng: random.Random, at_once: int, seconds: float, counted: bool = True) -> None:
    """A closed loop of so many clients. Raises RigError when a request is not answered."""
    client = Client(side.address, demo.NAME)
    done = tokens = 0
    begun, used = time.perf_counter(), cpu_seconds(side.pids)

    async def work() -> None:
        nonlocal done, tokens
        while time.perf_counter() - begun < seconds:
            out = await client.ask(prompt(rng), NEW_TOKENS)
            if not out.served:
                raise RigError(f"{side.name}: a request was not answered: {out.status} {out.error}")
            done += 1
            tokens += out.tokens

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except* RigError as errors:
        raise RigError(str(errors.exceptions[0])) from None
    finally:
        await client.close()
    if counted:
        side.tokens_per_second.append(tokens / (time.perf_counter() - begun))
        side.cpu_per_request.append((cpu_seconds(side.pids) - used) / done)


def start(rig: Rig, model: str, kv_bytes: int, events: bool) -> Side:
    """A node that tells of its cache, or does not, behind a router."""
    name = "with" if events else "without"
    config = rig.folder / f"{name}.yaml"
    config.write_text(
        f"inference:\n  engine: vllm\n  model: {model}\n  served_model_name: {demo.NAME}\n"
        f"  kv_cache_memory_bytes: {kv_bytes}\n  max_seq_len: {CONTEXT}\n  max_num_seqs: {SEQUENCES}\n"
        f"  kv_events: {str(events).lower()}\n"
    )
    node, pid, _ = rig.python("inference_node.main", "--config", str(config), limit=START)
    address, _, _ = rig.router([node], env={"LAYA_ROUTER__TIMEOUT_MS": "60000"})  # a closed loop is refused nothing
    return Side(name, address, family(pid))


def show(on: Side, off: Side) -> str:
    """The table, with the share that events cost."""
    rates = zip(on.tokens_per_second, off.tokens_per_second, strict=True)
    cpus = zip(on.cpu_per_request, off.cpu_per_request, strict=True)
    slower, dearer = 1 - on.rate() / off.rate(), on.cpu() / off.cpu() - 1
    lines = [
        "| KV events | tokens/s | CPU ms a request |",
        "|---|---|---|",
        *(f"| {side.name} | {side.rate():.1f} | {side.cpu() * 1e3:.1f} |" for side in (on, off)),
        "",
        "with / without, by round: tokens/s " + ", ".join(f"{a / b:.3f}" for a, b in rates),
        "                          CPU      " + ", ".join(f"{a / b:.3f}" for a, b in cpus),
        f"Events cost {slower:.1%} of the throughput and {dearer:.1%} more CPU.",
    ]
    return "\n".join(lines)


async def compare(sides: tuple[Side, Side], rounds: int, seconds: float, at_once: int, seed: int) -> None:
    """Load both in turn; in a round both get the same prompts."""
    for side in sides:
        await load(side, random.Random(seed), at_once, WARM_UP, counted=False)
    for number, turn in enumerate(order(rounds)):
        for at in turn:
            await load(sides[at], random.Random(f"{seed}-{number}"), at_once, seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; 1 when something does not start or answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="of each side (4)")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a round (12)")
    parser.add_argument("--at-once", type=int, default=4, help="requests at once (4)")
    parser.add_argument("--kv-mib", type=int, default=48, help="KV space of each node in MiB (48)")
    parser.add_argument("--model", type=Path, help="a folder (the demo model)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print figures for a script")
    args = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    model = str(args.model or demo.prepare())
    try:
        with Rig() as rig:
            on, off = (start(rig, model, args.kv_mib * _MIB, events) for events in (True, False))
            asyncio.run(compare((on, off), args.rounds, args.seconds, args.at_once, args.seed))
    except RigError as e:
        print(f"bench_kv_events: {e}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([{"events": s.name, "tokens_per_second": s.tokens_per_second, "cpu_seconds": s.cpu_per_request}
                          for s in (on, off)]))  # fmt: skip
    else:
        print(show(on, off))
    return 0


if __name__ == "__main__":
    sys.exit(main())
