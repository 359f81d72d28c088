"""Measures the dispatch policy alone: what a decision costs, and how evenly a burst lands.

    python -m loadtest.bench_dispatch [--decisions 20000] [--seeds 1000]

A decision is ``Dispatcher.submit`` up to its reservation. Reports and ended requests happen in between, untimed, as
they would between two requests of a router.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import sys
import time
from collections.abc import Callable

from router_node.dispatch import (
    Ask,
    Dispatcher,
    DispatchSettings,
    NodeSpec,
    Report,
    Reservation,
    Ticket,
    hash_blocks,
)
from router_node.dispatch.prefix import PrefixMap
from shared.errors import LayaError

MODEL = "bench"
CAPACITY = 524_288
RATE = 8000.0
SESSIONS = 100_000
BURST = 500
BURST_NODES = 16
BURST_SECONDS = 0.010


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bed:
    """A dispatcher over idle nodes that all look alike."""

    def __init__(
        self,
        nodes: int,
        seed: int,
        worker: str = "w",
        sessions: int = 65_536,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.clock = Clock()
        settings = DispatchSettings(cache_size=sessions, max_backlog=math.inf)  # decisions are timed, not queues
        self.dispatcher = Dispatcher(worker, settings, clock or self.clock, rng=random.Random(seed))
        self.node_ids = [f"node-{i}" for i in range(nodes)]
        self._sequence = 0
        for i, node_id in enumerate(self.node_ids):
            self.dispatcher.add_node(
                node_id, f"127.0.0.1:{10_000 + i}", NodeSpec(MODEL, max_seq_len=32_768, kv_capacity_tokens=CAPACITY)
            )
            self.dispatcher.set_link(node_id, True)
        self.report()

    def report(self) -> None:
        """Every node says that it is idle, and counts nothing."""
        self._sequence += 1
        for node_id in self.node_ids:
            self.dispatcher.on_report(
                node_id,
                Report(
                    self._sequence,
                    "boot",
                    CAPACITY,
                    CAPACITY,
                    prefill_tokens_per_second=RATE,
                    full=self._sequence == 1,
                ),
            )

    def submit(self, ask: Ask) -> Reservation:
        """A reservation for ``ask``; there is room for it."""
        got = self.dispatcher.submit(ask, _no_grant, _no_refusal)
        if isinstance(got, Ticket):
            raise RuntimeError("the benchmark overran its nodes; this is a bug in it")
        return got


def _no_grant(_: Reservation) -> None:
    raise RuntimeError("nothing waits in this benchmark")


def _no_refusal(error: LayaError) -> None:
    raise error


def decisions(nodes: int, count: int, kind: str) -> tuple[float, float]:
    """p50 and p99 of ``count`` decisions over ``nodes`` nodes, in microseconds."""
    bed = Bed(nodes, seed=1, sessions=2 * SESSIONS, clock=time.monotonic)
    rng = random.Random(2)
    names = [b"session-%d" % i for i in range(SESSIONS)]
    lengths = [rng.randrange(50, 1800) for _ in range(SESSIONS)]
    for name, length in zip(names, lengths, strict=True):  # known to the router, as after a busy hour
        bed.submit(Ask(MODEL, session=name, prompt_tokens=length, max_new_tokens=64)).end()
    shared = rng.randbytes(8192)
    running: list[Reservation] = []
    took = []
    clock = time.perf_counter_ns
    submit = bed.dispatcher.submit
    gc.collect()
    gc.disable()
    for i in range(count):
        which = rng.randrange(SESSIONS)
        # As bytes of a request just read; a turn's prompt is that of the turn before and a little more.
        session = bytes(bytearray(names[which])) if kind in ("session", "both") else b""
        prompt = lengths[which] + rng.randrange(20, 400) if session else rng.randrange(50, 2000)
        prefix: tuple[int, ...] = ()
        if kind in ("prefix", "both"):  # 16 blocks, of which some lead ones are common to many prompts
            prefix = hash_blocks((shared[: 512 * rng.randrange(17)] + rng.randbytes(8192))[:8192])
        ask = Ask(
            MODEL,
            session=session,
            prefix=prefix,
            prompt_tokens=prompt,
            max_new_tokens=256,
        )
        start = clock()
        reservation = submit(ask, _no_grant, _no_refusal)
        took.append(clock() - start)
        if isinstance(reservation, Ticket):
            raise RuntimeError("the benchmark overran its nodes; this is a bug in it")
        running.append(reservation)
        if len(running) > 50 * min(nodes, 16):
            running.pop(rng.randrange(len(running))).end()
        if i % 2000 == 1999:
            bed.report()
    gc.enable()
    took.sort()
    return took[len(took) // 2] / 1000, took[len(took) * 99 // 100] / 1000


def churn(count: int) -> tuple[float, float]:
    """p99 of a decision for ever new sessions, in microseconds: with all remembered, and ten times the table seen."""
    cache_size = 4096
    clock = time.perf_counter_ns
    out = []
    for size in (1 << 20, cache_size):
        bed = Bed(16, seed=6, sessions=size)
        for i in range(10 * cache_size):
            bed.submit(Ask(MODEL, session=b"old-%d" % i, prompt_tokens=100, max_new_tokens=64)).end()
        took = []
        for i in range(count):
            ask = Ask(MODEL, session=b"new-%d" % i, prompt_tokens=100, max_new_tokens=64)
            start = clock()
            reservation = bed.submit(ask)
            took.append(clock() - start)
            reservation.end()
        took.sort()
        out.append(took[len(took) * 99 // 100] / 1000)
    return out[0], out[1]


def prefixes(rounds: int) -> tuple[float, float]:
    """Microseconds to hash the blocks of an 8 KiB prompt, and to do so, find who holds them and note one more."""
    rng = random.Random(3)
    known = PrefixMap(65_536)
    prompts = [rng.randbytes(8192) for _ in range(2000)]
    for slot, prompt in enumerate(prompts):
        known.insert(hash_blocks(prompt), (), 0, slot % 16)
    hashed = []
    found = []
    for i in range(rounds):
        prompt = prompts[rng.randrange(len(prompts))]
        start = time.perf_counter_ns()
        chain = hash_blocks(prompt)
        middle = time.perf_counter_ns()
        known.insert(chain, *known.match(chain), i % 16)
        end = time.perf_counter_ns()
        hashed.append(middle - start)
        found.append(end - start)
    hashed.sort()
    found.sort()
    return hashed[rounds // 2] / 1000, found[rounds // 2] / 1000


def burst(routers: int, seed: int) -> float:
    """The largest distance from an even share, in requests, when routers that do not talk meet a burst."""
    rng = random.Random(seed)
    beds = [Bed(BURST_NODES, rng.getrandbits(64), f"w{i}", sessions=64) for i in range(routers)]
    landed = dict.fromkeys(beds[0].node_ids, 0)
    for i in range(BURST):
        bed = rng.choice(beds)
        bed.clock.now = 1000.0 + BURST_SECONDS * i / BURST
        landed[bed.submit(Ask(MODEL, prompt_tokens=200, max_new_tokens=128)).node.id] += 1
    even = BURST / BURST_NODES
    return max(abs(count - even) for count in landed.values())


def reports(nodes: int, count: int) -> float:
    """Microseconds to take in one report, of ``count``, while each counts a dispatch."""
    bed = Bed(nodes, seed=4)
    rng = random.Random(5)
    clock = time.perf_counter_ns
    took = []
    for i in range(count):
        reservation = bed.submit(Ask(MODEL, prompt_tokens=200, max_new_tokens=128))
        node = reservation.node
        report = Report(
            2 + i,
            "boot",
            CAPACITY,
            CAPACITY - rng.randrange(100_000),
            queued_prefill_tokens=rng.randrange(4000),
            prefill_tokens_per_second=RATE,
            counted_dispatches=(reservation.id.decode(),),
        )
        bed.clock.now += 1e-4
        start = clock()
        bed.dispatcher.on_report(node.id, report)
        took.append(clock() - start)
    took.sort()
    return took[len(took) // 2] / 1000


def main(argv: list[str] | None = None) -> int:
    """Print the figures; exit 1 when one misses its aim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=20_000, help="decisions timed per line")
    parser.add_argument("--seeds", type=int, default=1000, help="bursts per line; 0 leaves them out")
    options = parser.parse_args(argv)
    missed = 0

    print(f"One decision with {SESSIONS:,} sessions known, microseconds")
    print(f"  {'request':<18}{'nodes':>6}{'p50':>8}{'p99':>8}   aim")
    kinds: list[tuple[str, str, bool]] = [
        ("plain", "plain", True),
        ("session", "session", True),
        ("prefix", "16-block prefix", False),
        ("both", "session, prefix", False),
    ]
    for kind, label, aimed in kinds:
        for nodes in (4, 1000):
            p50, p99 = decisions(nodes, options.decisions, kind)
            aim = ("met" if p50 <= 10.0 else "MISSED") + " (p50 <= 10)" if aimed else ""
            missed += aim.startswith("MISSED")
            print(f"  {label:<18}{nodes:>6}{p50:>8.2f}{p99:>8.2f}   {aim}")
    remembered, forgotten = min((churn(options.decisions // 2) for _ in range(3)), key=lambda pair: pair[1] / pair[0])
    verdict = "met" if forgotten <= 2 * remembered else "MISSED"
    missed += verdict == "MISSED"
    print(
        f"p99 of new sessions: {remembered:.2f} with all remembered, {forgotten:.2f} at ten times the table"
        f"   {verdict} (<= 2x)"
    )
    hashed, found = min((prefixes(2000) for _ in range(5)), key=lambda pair: pair[1])  # the least disturbed of five
    verdict = "met" if found <= 10.0 else "MISSED"
    missed += verdict == "MISSED"
    print(
        f"An 8 KiB prompt of 16 blocks: {hashed:.2f} to hash, {found:.2f} to hash, match and note   {verdict} (<= 10)"
    )
    for nodes in (4, 1000):
        print(f"Taking in one report, {nodes} nodes: {reports(nodes, 5000):.2f} microseconds")
    if options.seeds:
        missed += bursts(options.seeds, print)
    return 1 if missed else 0


def bursts(seeds: int, say: Callable[[str], None]) -> int:
    """Print how bursts land; returns how many aims were missed."""
    missed = 0
    say(f"{BURST} equal requests in {BURST_SECONDS * 1000:.0f} ms over {BURST_NODES} idle nodes, {seeds} seeds")
    for routers in (1, 4):
        distances = sorted(burst(routers, seed) for seed in range(seeds))
        share = sum(distance <= 3 for distance in distances) / seeds
        verdict = "met" if share >= 0.95 else "MISSED"
        missed += verdict == "MISSED"
        say(
            f"  {routers} router{'s' if routers > 1 else ' '}: within +-3 of even in {share:.1%} of seeds,"
            f" worst {distances[-1]:.2f}   {verdict} (>= 95 %)"
        )
    return missed


if __name__ == "__main__":
    sys.exit(main())
