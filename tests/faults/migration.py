"""``python -m tests.faults.migration``: break the nodes under streams, and see that no reader notices.

python -m tests.faults.migration                      # 1,000 streams lose their node by each break
python -m tests.faults.migration --streams 50 --only kill
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.faults.hosts import possible
from tests.faults.moved import WRONGS, Readers, Result, Stream
from tests.faults.site import KEEPALIVE, NODE_PORT, Member, Site

BREAKS: Final = ("kill", "stop", "rst", "goaway", "drain", "partition", "two deaths")
_ENV: Final = {
    "LAYA_INFERENCE__SIM__DECODE_BASE_MS": "50",
    "LAYA_INFERENCE__SIM__DECODE_PER_SEQUENCE_MS": "0",
    "LAYA_SERVER__DRAIN_TIMEOUT": "0.2",
}
_LEAST, _MOST = 20, 100  # tokens of a stream
_PATIENCE: Final = 40.0  # seconds for any one step
_ENOUGH: Final = 20  # problems, and nothing new will be seen
_ATTEMPTS: Final = 3  # moves of a stream that a router allows
# Seconds after which what a reader sees can only be from another node than the one that was broken.
_SURE: Final = {"stop": KEEPALIVE, "partition": KEEPALIVE, "rst": 0.5}


class Breaker:
    """Breaks nodes of a site while streams are read."""

    def __init__(self, site: Site, readers: int, seed: int, say: Callable[[str], None]) -> None:
        self._site = site
        self._rng = random.Random(seed)
        self._count = readers
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._moves: Counter[str] = Counter()
        self._read: dict[str, int] = {}
        self._readers = self._new()
        self._ended_then: list[Stream] = []
        self._drained = ""

    def _new(self) -> Readers:
        return Readers(self._site.addresses, self._count, self._rng, _LEAST, _MOST)

    async def run(self, name: str, streams: int, limit: float) -> Result:
        """Break nodes in one way until so many streams were moved (twice, by two deaths), and have ended.

        Past ``limit`` seconds no more are broken.
        """
        result = Result(name)
        since = self._loop.time()
        self._readers = self._new()
        self._readers.start()
        try:
            while (result.twice if name == "two deaths" else result.moved) < streams:
                if self._loop.time() - since > limit or len(result.problems) > _ENOUGH:
                    break
                result.rounds += 1
                struck, at = await self._round(name), self._loop.time() + _SURE.get(name, 0.0)
                await self._until(lambda s=struck, t=at: all(one.last > t or one.ended for one in s), "streams go on")  # type: ignore[misc]
                await asyncio.to_thread(self._heal, name)
                self._collect(result)
                self._say(f"  {name}: {result.moved} moved, {result.twice} twice, {len(result.problems)} not right")
        finally:
            await self._readers.stop()
        self._collect(result)
        await asyncio.sleep(3.0)
        self._collect(result, last=True)
        result.seconds = self._loop.time() - since
        return result

    def _collect(self, result: Result, last: bool = False) -> None:
        """Count the streams that had ended at the last call: a router's log is a moment behind.

        One that was told of other moves than the log has waits for the log, until the ``last`` call.
        """
        self._read_logs()
        known, waiting = len(result.problems), []
        for stream in self._ended_then:
            stream.moves = self._moves[stream.name]
            if last or stream.problem or stream.told in (-1, stream.moves):
                result.add(stream)
            else:
                waiting.append(stream)
        for problem in result.problems[known:]:
            self._say(f"PROBLEM {result.name}: {problem}")
        self._ended_then = [*waiting, *self._readers.done]
        self._readers.done.clear()

    def _read_logs(self) -> None:
        for path in (path for router in self._site.routers for path in router.logs):
            with Path(path).open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] = self._read.get(path, 0) + len(line)
                    if b'"migrated":' in line:
                        entry = json.loads(line)
                        self._moves[entry["request_id"]] = entry["migrated"].count(">")

    async def _round(self, name: str) -> list[Stream]:
        """Break nodes once; the streams that ran on them."""
        # A stream may be moved three times, and nobody outside knows where it went.
        await self._until(lambda: all(s.breaks < _ATTEMPTS for s in self._readers.now), "streams that moved a lot end")
        await self._until(lambda: bool(self._busy()), "streams run on a node")
        victim = self._rng.choice(self._busy())
        # At a random token of one of them, which is a random one of all the others too.
        chosen = self._rng.choice(self._on(victim))
        at = self._rng.randrange(chosen.seen, chosen.tokens + 1)
        await self._until(lambda: chosen.seen >= at or chosen.ended, "a stream comes to its token")
        struck = self._on(victim)
        for stream in self._readers.now:
            stream.breaks += _ATTEMPTS if name == "two deaths" else 1
        await self._break(name, victim)
        if name == "two deaths":
            # Nobody outside knows where they went, so two of the three nodes that are left follow, one after the other.
            others = self._rng.sample([node for node in self._site.nodes if node is not victim], 2)
            for other in others:
                struck = list(self._readers.now)
                # Two deaths without a token between them would be the request's own fault.
                seen = [(stream, stream.seen) for stream in struck]
                await self._until(lambda s=seen: all(one.seen > n or one.ended for one, n in s), "streams go on")  # type: ignore[misc]
                self._kill(other)
        return struck

    def _busy(self) -> list[Member]:
        return [node for node in self._site.nodes if self._on(node)]

    def _on(self, node: Member) -> list[Stream]:
        return [stream for stream in self._readers.now if stream.running and stream.node == node.name]

    def _kill(self, victim: Member) -> None:
        assert victim.proc is not None
        victim.proc.kill()

    async def _break(self, name: str, victim: Member) -> None:
        if name in ("kill", "two deaths"):
            self._kill(victim)
        elif name == "stop":
            victim.signal(signal.SIGSTOP)
        elif name == "goaway":
            victim.signal(signal.SIGTERM)
        elif name == "drain":
            self._drained = victim.name
            await asyncio.to_thread(self._laya, "drain", victim.name, "--migrate", "--grace", "30")
        for router in self._site.routers:
            if name == "rst":
                victim.host.reset(router.host.address, NODE_PORT)
            elif name == "partition":
                victim.host.cut(router.host.address)

    def _laya(self, *words: str) -> None:
        """The command line, beside the first router."""
        router = self._site.routers[0]
        assert router.proc is not None
        argv = [*router.host.prefix, sys.executable, "-m", "shared.cli.main", *words]
        argv += ["--admin", router.proc.ready["admin"]]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=_PATIENCE)

    def _heal(self, name: str) -> None:
        """Everything is as before; blocking."""
        if name == "drain":
            self._laya("drain", self._drained, "--undo")
        if name == "goaway":
            self._one_ended()
        self._site.heal()
        self._site.wait_ready(_PATIENCE)

    def _one_ended(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while all(node.runs for node in self._site.nodes):
            assert time.monotonic() < deadline, "no node ended its drain"
            time.sleep(0.05)

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = self._loop.time() + _PATIENCE
        while not done():
            assert self._loop.time() < deadline, f"not within {_PATIENCE:.0f} s: {what}\n{self._site.tails()}"
            await asyncio.sleep(0.005)


async def broken(
    counts: dict[str, int],
    readers: int,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
    limit: float = 600.0,
) -> list[Result]:
    """Every way to break in ``counts``, until so many streams were moved because of it, or ``limit`` seconds."""
    results = []
    with Site(env=_ENV) as site:
        breaker = Breaker(site, readers, seed, say)
        for name, count in counts.items():
            results.append(await breaker.run(name, count, limit))
            say(table(results[-1:]))
    return results


def table(results: Sequence[Result]) -> str:
    """For a person."""
    head = ("break", "times", "streams", "moved", "twice", *WRONGS, "stall p50 ms", "p99 ms", "seconds")
    rows: list[tuple[str, ...]] = [head]
    for r in results:
        stalls = (f"{r.stall(0.5) * 1000:.0f}", f"{r.stall(0.99) * 1000:.0f}", f"{r.seconds:.0f}")
        wrongs = (str(r.wrongs[wrong]) for wrong in WRONGS)
        rows.append((r.name, str(r.rounds), str(r.streams), str(r.moved), str(r.twice), *wrongs, *stalls))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def main() -> int:
    """Run it; the exit code is 1 when a reader saw anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.migration")
    parser.add_argument("--streams", type=int, default=1000, help="streams moved by each break (1000)")
    parser.add_argument("--readers", type=int, default=128, help="streams at a time (128)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each break (600)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--only", default="", help="breaks whose name contains this")
    args = parser.parse_args()
    why = possible()
    if why:
        print(f"Faults need network namespaces: {why}.", file=sys.stderr)
        return 2
    counts = {name: args.streams for name in BREAKS if args.only in name}
    print(f"seed {args.seed}", flush=True)
    results = asyncio.run(broken(counts, args.readers, args.seed, lambda line: print(line, flush=True), args.limit))
    print(table(results))
    return 1 if any(r.problems for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
