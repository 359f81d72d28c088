"""The faults: what is broken, for how long, and what may come of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from router_node.discovery.registration import Registration, index_key, node_key, sign
from shared.config.schema import TlsConfig
from shared.net.api import Headers
from shared.net.grpc_wire import frame as message
from shared.net.tls import server_context
from shared.net.tls_watch import INTERVAL
from tests.faults import leaving, limits
from tests.faults.http_call import Broken, post
from tests.faults.load import LIMIT
from tests.faults.site import FIRST_TOKEN, KEEPALIVE, KEEPALIVE_TIMEOUT, NODE_PORT, TOKEN, Member, Site
from tests.support.attack import CONTINUATION, HEADERS, frame
from tests.support.leaks import ANYONE
from tests.support.rogue_node import HEAD, RogueCall, RogueNode

SILENT: Final = KEEPALIVE + KEEPALIVE_TIMEOUT  # seconds after which a peer that says nothing is given up
KILLED: Final = 1.5  # the stall that the death of a process may cost others, in seconds
ENDLESS: Final = FIRST_TOKEN * 1.25 + KILLED  # what is silent on one request is found at its time or a quarter later
OWN: Final = LIMIT + 2.0  # seconds after which a client gives a try up, whatever it hears

Act = Callable[[Site], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One way in which things break.

    ``seconds`` is how long it lasts. ``stall`` bounds the longest wait of a request that was not sent to what broke, or
    was sent on from it; where clients must see to themselves, their own time limit. ``clean``: no request may fail
    for it. ``unaided``: nor may a client have had to try again.
    """

    name: str
    seconds: float
    inject: Act
    heal: Act | None = None
    stall: float = OWN
    clean: bool = False
    unaided: bool = False
    works: Callable[[Site], bool] = lambda site: True
    long: float = 0.0  # seconds that it lasts instead in a run of ten minutes or more


def _act(work: Callable[[Site], object]) -> Act:
    async def act(site: Site) -> None:
        await asyncio.to_thread(work, site)

    return act


def _kill(pick: Callable[[Site], Member]) -> Act:
    def kill(site: Site) -> None:
        member = pick(site)
        if member.proc is not None:
            member.proc.kill()

    return _act(kill)


def _freeze(pick: Callable[[Site], Member]) -> Act:
    return _act(lambda site: pick(site).signal(signal.SIGSTOP))


def _pid(member: Member) -> int:
    assert member.proc is not None
    return member.proc.popen.pid


async def _reset(site: Site) -> None:
    host = site.nodes[1].host
    await asyncio.to_thread(host.reset, site.routers[0].host.address, NODE_PORT)
    await asyncio.sleep(0.7)
    await asyncio.to_thread(host.heal)


async def _jump(site: Site) -> None:
    for seconds in (3600, -3600, 86_400 * 400):
        site.clock.set(seconds)
        await asyncio.sleep(2.0)


async def _oversize(site: Site) -> None:
    """A node may take little more memory than it has, and prompts come that are as long as any may be.

    One that has run for long serves these from what it has kept of earlier ones: then bodies come as well, straight to
    it, of which it has to hold ever more.
    """
    node = site.nodes[2]
    pid = _pid(node)
    await asyncio.to_thread(limits.limit_memory, pid, 1 << 20)
    await asyncio.gather(*(_long_prompt(site.addresses[i % 2]) for i in range(24)))
    for held in range(16, 80, 16):
        if not limits.memory_reached(pid):
            await asyncio.gather(*(_half_a_body(node.host.address) for _ in range(held)))
    assert limits.memory_reached(pid), "the node never reached its memory limit"


async def _half_a_body(address: str) -> None:
    """Have a node hold a megabyte for a moment, of a request that never comes to its end."""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nlaya-cluster-token: {TOKEN}\r\ncontent-length: {2 << 20}\r\n\r\n"
    )
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            _, writer = await asyncio.open_connection(address, NODE_PORT, ssl=ANYONE)
            try:
                writer.write(f"{head}content-length: {2 << 20}\r\n\r\n".encode() + os.urandom(1 << 20))
                await writer.drain()
                await asyncio.sleep(1.0)  # so that all of them are held at once
            finally:
                writer.transport.abort()


async def _long_prompt(router: str) -> None:
    body = {"model": "sim", "prompt": "oversize " * 12_000, "max_tokens": 1}
    with contextlib.suppress(Broken):
        async with asyncio.timeout(30), aclosing(post(router, "/v1/completions", body, {})) as answers:
            async for answer in answers:
                whole = await answer.whole()
                if answer.status != 200:
                    assert json.loads(whole)["error"]["code"], whole


async def _roll(site: Site) -> None:
    """Every node: SIGTERM, its end, and a new one in its place. Then every router replaces itself."""
    for node in site.nodes:
        await asyncio.to_thread(_replace, site, node)
    leaving = []
    for router in site.routers:
        assert router.proc is not None
        leaving.append((router, await asyncio.to_thread(router.proc.replace)))
        await asyncio.to_thread(site.wait_ready, 20)
    for router, before in leaving:
        code = await asyncio.to_thread(before.wait, 30)
        assert code == 0, f"{router.name}, replaced, ended its drain with {code}\n{router.tail()}"


def _replace(site: Site, member: Member) -> None:
    proc = member.proc
    assert proc is not None
    member.signal(signal.SIGTERM)
    code = proc.popen.wait(30)
    assert code == 0, f"{member.name} ended its drain with {code}\n{proc.output()}"
    member.restart()
    site.wait_ready(20)


def _certify(site: Site, hours: int) -> None:
    """Give the third node a certificate that expires in so many hours, in place of the one it has."""
    member = site.nodes[2]
    site.authority.pair(member.name, addresses=[member.host.address], hours=hours)


async def _expire(site: Site) -> None:
    await asyncio.to_thread(_certify, site, -1)
    await asyncio.sleep(2 * INTERVAL + 1)  # it is read, and settles
    host = site.nodes[2].host
    for router in site.routers:
        await asyncio.to_thread(host.reset, router.host.address, NODE_PORT)
    await asyncio.sleep(0.7)
    await asyncio.to_thread(host.heal)
    await asyncio.sleep(0.5)
    for router in site.routers:
        seen = await asyncio.to_thread(site.ready_nodes, router)
        assert seen < len(site.nodes), f"{router.name} still uses a node whose certificate has expired"


# Nodes that misbehave: they register like any other, and are sent requests.


def _register(site: Site, node: RogueNode, address: str) -> None:
    record = Registration(
        node_id=node.node_id, boot_id="b1", address=address, model="sim", issued_at=time.time(), ttl=60.0
    )
    master = site.store.master
    signed = sign(record, "laya", TOKEN.encode()).decode()
    master.ask("SET", node_key("laya", node.node_id), signed, "EX", "60")
    master.ask("SADD", index_key("laya"), node.node_id)


def _rogue(behave: Callable[[RogueCall], None]) -> tuple[Act, Act]:
    made: list[RogueNode] = []

    async def inject(site: Site) -> None:
        pair = site.authority.pair("rogue", addresses=[site.network.address])
        tls = server_context(TlsConfig(cert_file=pair.cert, key_file=pair.key))
        node = RogueNode("rogue", "sim", site.network.address, tls)
        node.behave = behave
        made.append(await node.start())
        await asyncio.to_thread(_register, site, node, node.address)

    async def heal(site: Site) -> None:
        master = site.store.master
        await asyncio.to_thread(master.ask, "DEL", node_key("laya", "rogue"))
        await asyncio.to_thread(master.ask, "SREM", index_key("laya"), "rogue")
        while made:
            await made.pop().stop()

    return inject, heal


def _garbage(call: RogueCall) -> None:
    call.write_raw(b"\xff\xff\xff" + os.urandom(61))


def _wrong_trailers(call: RogueCall) -> None:
    odd: Headers = [(b"grpc-status", b"banana"), (b"grpc-message", b"%%%")]
    call.stream.respond(HEAD)
    call.stream.trailers(odd)


def _endless_headers(call: RogueCall) -> None:
    call.write_raw(frame(HEADERS, 0, call.stream.id, b"\x88"))
    for _ in range(64):
        call.write_raw(frame(CONTINUATION, 0, call.stream.id, b"\x10\x7f\x81\x7f" + b"a" * 8192))


def _never_begins(call: RogueCall) -> None:
    call.stream.respond(HEAD)


def _never_ends(call: RogueCall) -> None:
    """Messages without end, all of them well-formed, and no token in any."""
    call.stream.respond(HEAD)
    call.drip(message(b""), 0.1)


def _rogues() -> list[Fault]:
    kinds = (
        ("node: garbage frames", _garbage, 3.0, KILLED),
        ("node: wrong trailers", _wrong_trailers, 3.0, KILLED),
        ("node: endless headers", _endless_headers, 3.0, KILLED),
        ("node: answer never begins", _never_begins, 7.0, ENDLESS),
        ("node: answer never ends", _never_ends, LIMIT + 1, OWN),
    )
    out = []
    for name, behave, seconds, stall in kinds:
        inject, heal = _rogue(behave)
        out.append(Fault(name, seconds, inject, heal, stall=stall))
    return out


def both(pair: Sequence[Fault]) -> Fault:
    """What may come of faults together: a request that one of them has held up may then meet the next one."""
    return Fault(" + ".join(fault.name for fault in pair), 0.0, nothing, stall=sum(fault.stall for fault in pair))


async def nothing(site: Site) -> None:
    """Break nothing."""


def catalogue() -> list[Fault]:
    """Every fault, in the order of the table."""
    silent = SILENT + 1.0  # a look at the clock on each side, and the way to another node
    return [
        Fault("nothing", 3.0, nothing, clean=True, stall=KILLED),
        Fault("node killed", 2.5, _kill(lambda site: site.nodes[0]), stall=KILLED),
        Fault("router killed", 2.5, _kill(lambda site: site.routers[0]), stall=KILLED),
        Fault("node frozen", SILENT + 2, _freeze(lambda site: site.nodes[1]), stall=silent),
        Fault("router frozen", SILENT + 1, _freeze(lambda site: site.routers[1]), stall=SILENT + 1 + KILLED),
        Fault(
            "partition router-node",
            SILENT + 1.5,
            _act(lambda site: site.routers[0].host.cut(site.nodes[2].host.address)),
            stall=silent,
        ),
        Fault("partition router-store", 4.0, _act(_cut_store), clean=True, stall=KILLED),
        Fault("partition client-router", 4.0, _act(lambda site: site.routers[0].host.cut(site.network.address))),
        Fault(
            "one-way loss node-router",
            SILENT + 1.5,
            _act(lambda site: site.routers[1].host.cut(site.nodes[3].host.address, both=False)),
            stall=silent,
        ),
        Fault("5 % loss at a node and a router", 5.0, _act(_lossy)),
        Fault("slow link to a node, 0.1 to 0.3 s", 5.0, _act(_slow), clean=True, stall=KILLED),
        Fault("TCP resets router-node", 2.0, _reset, stall=KILLED),
        Fault("store: failover", 4.0, _act(lambda site: site.store.master.kill()), clean=True, stall=KILLED),
        Fault("store: flush", 3.0, _act(lambda site: site.store.master.ask("FLUSHALL")), clean=True, stall=KILLED),
        Fault(
            "store: stall", 4.0, _act(lambda site: site.store.master.signal(signal.SIGSTOP)), clean=True, stall=KILLED
        ),
        Fault("store: all of it gone", 5.0, _act(_no_store), clean=True, stall=KILLED, long=60.0),
        Fault(
            "disk full",
            3.0,
            _act(lambda site: site.disk.fill()),
            clean=True,
            stall=KILLED,
            works=lambda site: site.disk.works,
        ),
        Fault("clock jumps", 0.5, _jump, clean=True, stall=KILLED, works=lambda site: site.clock.works),
        Fault(
            "router without descriptors", 3.0, _act(lambda site: limits.deny_files(_pid(site.routers[0]))), stall=KILLED
        ),
        Fault("node without descriptors", 3.0, _act(lambda site: limits.deny_files(_pid(site.nodes[3]))), stall=KILLED),
        Fault("node out of memory", 4.0, _oversize, stall=silent, works=lambda site: limits.memory_works()),
        Fault("certificate expires", 2.0, _expire, _act(lambda site: _certify(site, 1)), stall=KILLED),
        *_rogues(),
        Fault("node drained, its streams moved", 0.5, leaving.drain, clean=True, unaided=True, stall=KILLED),
        Fault("router replaced", 0.5, leaving.replace, clean=True, unaided=True, stall=KILLED),
        Fault(
            "router replaced, the store away",
            5.0,
            leaving.replace_without_store,
            clean=True,
            unaided=True,
            stall=KILLED,
        ),
        Fault("router's successors killed", 0.5, leaving.kill_successors, clean=True, unaided=True, stall=KILLED),
        Fault("rolling restart", 0.5, _roll, clean=True, unaided=True, stall=KILLED),
    ]


def _no_store(site: Site) -> None:
    for server in (*site.store.sentinels, *site.store.servers):
        server.kill()


def _cut_store(site: Site) -> None:
    for server in site.store.servers:
        site.routers[0].host.cut(server.host.address)


def _slow(site: Site) -> None:
    assert site.slow_link is not None
    site.slow_link.set(0.1, 0.2)


def _lossy(site: Site) -> None:
    site.nodes[0].host.lose(0.05)
    site.routers[0].host.lose(0.05)
