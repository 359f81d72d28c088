"""Long runs, bounded by arguments: does anything grow, get lost, or shrink for good?

    python -m loadtest.endurance calls --calls 2000000
    python -m loadtest.endurance connections --connections 100000
    python -m loadtest.endurance traffic --mib 28000 --engine h2

``calls`` and ``connections`` run against a router in front of canned nodes and watch its resident memory; ``traffic``
echoes random bytes through a relay in this process (loadtest/traffic.py). Exit code 1 when a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import uvloop

from loadtest.hop_client import HopClient
from loadtest.rig import MODEL, Rig, rss_bytes
from loadtest.traffic import TrafficError, run_traffic
from shared.net.settings import NetSettings

_CHUNK: Final = 20_000  # calls between two looks
_WARM: Final = 0.2  # share of a run after which memory should have settled
_MIB: Final = 1 << 20
_ASK: Final = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
_SOCKET_LIMIT: Final = 10.0


class Broken(Exception):
    """A bound that does not hold: one sentence."""


@dataclass(slots=True)
class Growth:
    """Resident memory of one process over a run: what it was once warm, and the most since."""

    pid: int
    allowed: int
    warm: int = 0
    most: int = 0

    def look(self, share: float) -> int:
        """Note the size now; ``share`` is how much of the run is done."""
        now = rss_bytes(self.pid)
        if share <= _WARM or not self.warm:
            self.warm = now
        else:
            self.most = max(self.most, now)
        return now

    def check(self) -> str:
        """A sentence on the growth. Raises Broken when it is more than allowed."""
        grown = max(0, self.most - self.warm)
        told = f"resident memory: {self.warm / _MIB:.1f} MiB warm, {self.most / _MIB:.1f} MiB at most since"
        if grown > self.allowed:
            raise Broken(f"{told}: {grown / _MIB:.1f} MiB of growth, {self.allowed / _MIB:.1f} allowed")
        return told


async def many_calls(address: str, calls: int, in_flight: int, growth: Growth) -> str:
    """Unary calls and, a tenth of them, streams, over one connection."""
    client = HopClient(address, MODEL)
    await client.connect()
    done = 0
    began = time.monotonic()
    try:
        while done < calls:
            n = min(_CHUNK, calls - done, max(1, calls // 20))
            sample = await client.load(n - n // 10, in_flight)
            streams = await client.load(n // 10, in_flight, stream=True)
            errors = sample.errors + streams.errors
            if errors:
                raise Broken(f"{errors} calls failed after {done} had been made")
            done += n
            size = growth.look(done / calls)
            _progress(f"{done} calls, {size / _MIB:.1f} MiB")
    finally:
        await client.close()
    return f"{done} calls in {time.monotonic() - began:.0f} s; {growth.check()}"


async def many_connections(address: str, connections: int, at_once: int, growth: Growth) -> str:
    """Connections of all sorts, good, rude and broken, and a good call now and then."""
    client = HopClient(address, MODEL)
    await client.connect()
    made = 0
    began = time.monotonic()
    host, _, port = address.rpartition(":")

    async def work(first: int) -> None:
        nonlocal made
        for i in range(first, connections, at_once):
            await asyncio.wait_for(visit((host, int(port)), i), _SOCKET_LIMIT)
            made += 1
            if made % 1000 == 0 or made == connections:
                sample = await client.load(10, 2)
                if sample.errors:
                    raise Broken(f"{sample.errors} of 10 good calls failed beside {made} connections")
                _progress(f"{made} connections, {growth.look(made / connections) / _MIB:.1f} MiB")
            elif made % 100 == 0:
                growth.look(made / connections)

    try:
        await asyncio.gather(*(work(i) for i in range(at_once)))
    finally:
        await client.close()
    return f"{made} connections in {time.monotonic() - began:.0f} s; {growth.check()}"


_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"
_PING: Final = b"\0\0\x08\6\0\0\0\0\0laya-end"
# What is sent, and how much of an answer is waited for.
_VISITS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (_ASK, b'"object"'),
    (_PREFACE + _SETTINGS + _PING, b"laya-end"),
    (b"", b""),
    (_PREFACE[:10], b""),
    (_PREFACE + _SETTINGS, b"\0\0\0\4\1"),
    (b"\x16\x03\x01 no HTTP at all\r\n\r\n", b""),
    (b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{", b""),
)


async def visit(where: tuple[str, int], number: int) -> None:
    """One short connection, of a kind that follows from its number. Raises Broken or OSError."""
    loop = asyncio.get_running_loop()
    kind = number % len(_VISITS)
    send, expected = _VISITS[kind]
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, where)
        if send:
            await loop.sock_sendall(sock, send)
        heard = b""
        while expected not in heard:
            chunk = await loop.sock_recv(sock, 65_536)
            if not chunk:
                raise Broken(f"the router hung up on a good client of kind {kind}, after {heard[-200:]!r}")
            heard += chunk


async def traffic(mib: int, streams: int, engine: str, seed: int) -> str:
    """Random two-way traffic through a relay."""
    began = time.monotonic()
    tally = await run_traffic(mib * _MIB, settings=NetSettings(engine=engine), streams=streams, seed=seed)
    took = time.monotonic() - began
    return (
        f"{tally.back / _MIB:.0f} MiB back in {took:.0f} s over {engine}: {tally.whole} calls whole, "
        f"{tally.cancelled} cancelled, no byte and no window lost"
    )


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K  {text}", end="", file=sys.stderr, flush=True)


def _with_router(args: argparse.Namespace) -> str:
    with Rig() as rig:
        nodes = rig.nodes(args.nodes, "--messages", "8")
        env = {"LAYA_ROUTER__HTTP2_ENGINE": args.engine}
        address, pid, _ = rig.router(nodes, env=env)
        growth = Growth(pid, int(args.max_growth_mib * _MIB))
        if args.what == "calls":
            return uvloop.run(many_calls(address, args.calls, args.in_flight, growth))
        return uvloop.run(many_connections(address, args.connections, args.in_flight, growth))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.endurance", description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="what", required=True)
    calls = kinds.add_parser("calls", help="unary calls and streams")
    calls.add_argument("--calls", type=int, default=2_000_000)
    calls.add_argument("--in-flight", type=int, default=64)
    connections = kinds.add_parser("connections", help="short connections of all sorts")
    connections.add_argument("--connections", type=int, default=100_000)
    connections.add_argument("--in-flight", type=int, default=16, help="connections at once")
    mixed = kinds.add_parser("traffic", help="random bytes both ways")
    mixed.add_argument("--mib", type=int, default=1024)
    mixed.add_argument("--streams", type=int, default=32)
    mixed.add_argument("--seed", type=int, default=0)
    for kind in (calls, connections, mixed):
        kind.add_argument("--engine", choices=("ngh2", "h2"), default="ngh2")
    for kind in (calls, connections):
        kind.add_argument("--nodes", type=int, default=2)
        kind.add_argument("--max-growth-mib", type=float, default=8.0, help="allowed once warm")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one kind; 0 when every bound held."""
    args = _parser().parse_args(argv)
    try:
        if args.what == "traffic":
            told = uvloop.run(traffic(args.mib, args.streams, args.engine, args.seed))
        else:
            told = _with_router(args)
    except (Broken, TrafficError) as error:
        print(f"broken: {error}", file=sys.stderr)
        return 1
    print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
