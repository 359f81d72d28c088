"""Overload on real vLLM: Laya beside vLLM's own server, the same model, KV space and requests, three times too many.

    python -m loadtest.overload [--seconds 30] [--times 3] [--kv-mib 48] [--json]

First vLLM's own OpenAI server is asked every prompt once, which shows how long each answer really is, and then in a
closed loop, which shows the load that it can carry. Then it gets a Poisson stream at three times that load, in which
every request asks for one to two times the tokens that its answer has; and then a router with one node gets the very
same stream. Both run vLLM with the same arguments. Takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import random
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_node.engines import vllm_args, vllm_env
from inference_node.quantize import demo
from loadtest.hop_client import quantile
from loadtest.overload_load import Arrival, Client, Mix, Outcome, capacity, lengths, prompts, replay
from loadtest.rig import Rig, RigError, free_port
from shared.config.schema import InferenceConfig

CONTEXT, SEQUENCES = 2048, 32
SLO = 10.0  # seconds to the first token that are still good
LONG_SHARE = 0.2
CLOSED = 20.0  # seconds of the closed loop that shows what can be carried
WAIT_MS = 4000  # longest wait in the router: the rest of the SLO is for the node and the answer
START = 180.0  # seconds for a model to load
_MIB = 1 << 20
_PREEMPTIONS = re.compile(r"^vllm:num_preemptions_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Side:
    """A server under load: where clients go, and where its engine's metrics are."""

    name: str
    address: str
    metrics: str


@dataclass(frozen=True, slots=True)
class Result:
    """What one side made of the stream. Times are seconds."""

    side: str
    offered: int
    served: int
    refused: int
    untyped: int  # refusals without a reason or a time to come back
    errors: int
    tokens_per_second: float  # of full answers, from the first request to the last answer
    good_per_second: float  # full answers a second of the load whose first token came within the SLO
    short_p50: float
    short_p99: float
    long_p50: float
    long_p99: float
    preemptions: int


def result(side: str, outcomes: Sequence[Outcome], begun: float, seconds: float, preemptions: int) -> Result:
    """Sum up a run of ``seconds`` that began at ``begun`` on the outcomes' clock."""
    served = [o for o in outcomes if o.served]
    refused = [o for o in outcomes if o.refused]
    last = max((o.ended for o in served), default=begun)
    short = [o.first for o in outcomes if o.first and not o.long]
    long = [o.first for o in outcomes if o.first and o.long]
    return Result(
        side,
        len(outcomes),
        len(served),
        len(refused),
        sum(not o.typed for o in refused),
        len(outcomes) - len(served) - len(refused),
        sum(o.tokens for o in served) / max(last - begun, 1e-9),
        sum(o.first <= SLO for o in served) / seconds,
        quantile(short, 0.5),
        quantile(short, 0.99),
        quantile(long, 0.5),
        quantile(long, 0.99),
        preemptions,
    )


def preemptions(address: str) -> int:
    """The engine's own counter. Raises OSError."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        found = _PREEMPTIONS.findall(page.read().decode())
    if not found:
        raise RigError(f"{address} has no count of preemptions")
    return int(sum(map(float, found)))


@contextlib.contextmanager
def own_server(model: str, kv_bytes: int) -> Iterator[Side]:
    """vLLM's own OpenAI server, with what the node would pass to vLLM on a CPU, on the same core."""
    config = InferenceConfig(model=model)
    cores = vllm_env.compute_cores("", os.sched_getaffinity(0))
    env = vllm_env.node_environment(config, cpu=True, eager=True) | vllm_env.core_environment(cores, 0)
    env |= {"VLLM_CONFIGURE_LOGGING": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    port = free_port()
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--model", model, "--served-model-name", demo.NAME, "--kv-cache-memory-bytes", str(kv_bytes)]
    argv += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEQUENCES), "--enforce-eager"]
    argv += ["--max-num-batched-tokens", str(vllm_args.CPU_STEP_TOKENS)]
    argv += ["--distributed-executor-backend", vllm_args.UNIPROC, "--uvicorn-log-level", "error"]
    with Rig() as rig:
        rig.spawn(argv, port, env, limit=START)
        yield Side("vLLM's own server", f"127.0.0.1:{port}", f"127.0.0.1:{port}")


@contextlib.contextmanager
def laya(model: str, kv_bytes: int) -> Iterator[Side]:
    """A node with the same engine, behind a router that lets nobody wait for long; everything else as it comes."""
    with Rig() as rig:
        config = rig.folder / "node.yaml"
        config.write_text(
            f"inference:\n  engine: vllm\n  model: {model}\n  served_model_name: {demo.NAME}\n"
            f"  kv_cache_memory_bytes: {kv_bytes}\n  max_seq_len: {CONTEXT}\n  max_num_seqs: {SEQUENCES}\n"
        )
        node, _, _ = rig.python("inference_node.main", "--config", str(config), limit=START)
        address, _, _ = rig.router([node], env={"LAYA_ROUTER__TIMEOUT_MS": str(WAIT_MS)})
        yield Side("Laya", address, node)


async def warm_up(client: Client) -> None:
    """A few answers, and the node's ramp after its start."""
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        await client.ask(prompts(random.Random(1), 1, 0)[0], 8)


async def loaded(side: Side, plan: Sequence[Arrival], seconds: float) -> Result:
    """One side under the stream."""
    client = Client(side.address, demo.NAME)
    try:
        await warm_up(client)
        before = preemptions(side.metrics)
        outcomes, begun = await replay(client, plan)
        odd = sorted({o.error for o in outcomes if not o.served and not o.refused})
        for error in odd[:5]:
            print(f"{side.name}: {error or 'cut off'}", file=sys.stderr)
        return result(side.name, outcomes, begun, seconds, preemptions(side.metrics) - before)
    finally:
        await client.close()


async def measure(side: Side, rng: random.Random, times: float, seconds: float) -> tuple[list[Arrival], float]:
    """What a side can carry, in requests a second, and the stream that is so many times too much."""
    client = Client(side.address, demo.NAME)
    try:
        await warm_up(client)
        known = await lengths(client, prompts(rng, 40, 16), 8)
        if sum(not p.long for p in known) < 8:
            raise RigError("too few answers end by themselves; choose another model")
        mix = Mix(rng, known, LONG_SHARE)
        rate = await capacity(client, mix.draw, SEQUENCES // 2, CLOSED)
    finally:
        await client.close()
    return mix.stream(times * rate, seconds), rate


def verdicts(own: Result, ours: Result) -> list[tuple[str, bool]]:
    """What must be reached."""
    return [
        ("no preemption", ours.preemptions == 0),
        ("no engine error", ours.errors == 0),
        ("every refusal has a reason and a time to come back", ours.untyped == 0),
        ("goodput not below", ours.good_per_second >= own.good_per_second),
        ("p99 to the first token of short requests at most a third", ours.short_p99 <= own.short_p99 / 3),
    ]


def show(own: Result, ours: Result, rate: float, times: float) -> None:
    """The table, as it stands in the documentation."""
    today = datetime.date.today().isoformat()
    print(f"Load it can carry: {rate:.2f} requests/s; offered {times:g} times that. {today}, {os.cpu_count()} cores\n")
    rows = {
        "requests offered": "offered",
        "answered in full": "served",
        "refused": "refused",
        "errors": "errors",
        "preemptions": "preemptions",
        f"good answers/s (first token within {SLO:g} s)": "good_per_second",
        "tokens/s of full answers": "tokens_per_second",
        "short prompts, first token p50, s": "short_p50",
        "short prompts, first token p99, s": "short_p99",
        "long prompts, first token p50, s": "long_p50",
        "long prompts, first token p99, s": "long_p99",
    }
    print(f"| | {ours.side} | {own.side} |\n|---|---|---|")
    for label, name in rows.items():
        mine, theirs = getattr(ours, name), getattr(own, name)
        cells = (f"{v:.2f}" if isinstance(v, float) else str(v) for v in (mine, theirs))
        print(f"| {label} | {' | '.join(cells)} |")
    print()
    for what, met in verdicts(own, ours):
        print(f"{'met ' if met else 'MISSED'}  {what}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run both sides; 0 when everything was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the load (30)")
    parser.add_argument("--times", type=float, default=3.0, help="of the load that can be carried (3)")
    parser.add_argument("--kv-mib", type=int, default=48, help="KV space of each side in MiB (48)")
    parser.add_argument("--model", type=Path, help="a folder (the demo model)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print figures for a script")
    args = parser.parse_args(argv)
    model, kv = str(args.model or demo.prepare()), args.kv_mib * _MIB
    try:
        with own_server(model, kv) as side:
            plan, rate = asyncio.run(measure(side, random.Random(args.seed), args.times, args.seconds))
            own = asyncio.run(loaded(side, plan, args.seconds))
        with laya(model, kv) as side:
            ours = asyncio.run(loaded(side, plan, args.seconds))
    except RigError as e:
        print(f"overload: {e}", file=sys.stderr)
        return 1
    if args.json:
        figures = [{name: getattr(r, name) for name in Result.__slots__} for r in (ours, own)]
        print(json.dumps({"rate": rate, "sides": figures}))
    else:
        show(own, ours, rate, args.times)
    return 0 if all(met for _, met in verdicts(own, ours)) else 1


if __name__ == "__main__":
    sys.exit(main())
