"""How large a router is and whether its cost grows: with calls, nodes, open streams, client connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest.figures import Table, Target
from loadtest.hop_client import HopClient, quantile
from loadtest.hop_paced import Count, Paced
from loadtest.rig import MODEL, Rig, RigError, cpu_seconds, rss_bytes
from loadtest.rounds import WARM_LAP, Budget, turns

FEW = 10
IN_FLIGHT = 8
_KIB = 1024.0
_PER_CLIENT = 500  # streams on one connection, well under what a router allows
_HOLD_LIMIT = 30.0
_START = 15.0  # seconds to start everything whose growth is looked at, about
_HELD = "100000"  # seconds between the messages of a stream that is held open
# A quiet node reports once a second. Canned nodes that report like busy ones would measure the reports.
_QUIET = ("--report-every", "1")
_SIZE = ("value", "errors")
_GROWTH = ("cpu_us_per_call", "p50_ms", "idle_cpu_percent", "errors")
_REQUEST = b"GET /healthz HTTP/1.1\r\nhost: bench\r\n\r\n"


def run(seconds: float, rounds: int, calls: int, many: int, budget: Budget) -> list[Table]:
    """Both tables: sizes, and cost against number. Every figure of memory is that of a fresh router."""
    sizes = Table("Memory of one router worker", _SIZE)
    growth = Table(f"Cost against number, unary calls, {IN_FLIGHT} in flight", _GROWTH)
    with Rig() as rig:
        # Streams that are held open come from these nodes, unary calls too.
        nodes = rig.many_nodes(FEW, *_QUIET, "--pace", _HELD, "--messages", "2")
        router, pid, _ = rig.router(nodes)
        uvloop.run(_resident(sizes, router, pid, calls))
        router, pid, _ = rig.router(nodes)
        uvloop.run(_idle(sizes, "in clear", router, pid, many, None))
        _idle_http1(sizes, router, pid, many)
        cert, key = _certificate(rig.folder)
        env = {"LAYA_SERVER__TLS__CERT_FILE": cert, "LAYA_SERVER__TLS__KEY_FILE": key}
        trust = ssl.create_default_context(cafile=cert)
        router, pid, _ = rig.router(nodes, env=env, trust=trust)
        trust.set_alpn_protocols(["h2"])
        uvloop.run(_idle(sizes, "over TLS", router, pid, many, trust))
    if not budget.allows("growth", _START + rounds * (WARM_LAP + 2 * seconds)):
        return [sizes]
    with Rig() as rig:
        nodes = rig.many_nodes(FEW, *_QUIET, "--pace", _HELD, "--messages", "2")
        more = rig.many_nodes(many, *_QUIET)
        cases = [
            _case(rig, f"{FEW} of each", nodes, FEW, FEW),
            _case(rig, f"{many} nodes", more, 0, FEW),
            _case(rig, f"{many} open streams", nodes, many, FEW),
            _case(rig, f"{many} connections", nodes, FEW, many),
        ]
        uvloop.run(_compare(growth, cases, seconds, rounds, budget))
    return [sizes, growth]


@dataclass(frozen=True)
class Case:
    """A router, and what is held open on it while calls are made."""

    target: Target
    streams: int
    connections: int


def _case(rig: Rig, name: str, nodes: Sequence[str], streams: int, connections: int) -> Case:
    router, pid, _ = rig.router(nodes)
    return Case(Target(name, router, [pid]), streams, connections)


async def _resident(table: Table, router: str, pid: int, calls: int) -> None:
    client = HopClient(router, MODEL)
    try:
        await client.connect()
        table.add(f"resident with {FEW} nodes, MiB", "laya", value=rss_bytes(pid) / _KIB**2, errors=0.0)
        await client.load(max(100, calls // 5), 64)
        before = rss_bytes(pid)
        errors = 0
        for _ in range(10):  # one round has a deadline of its own
            errors += (await client.load(calls // 10, 64)).errors
        grown = rss_bytes(pid) - before
        table.add(f"growth over {calls:,} calls, KiB", "laya", value=grown / _KIB, errors=float(errors))
    finally:
        await client.close()


async def _idle(table: Table, how: str, router: str, pid: int, many: int, tls: ssl.SSLContext | None) -> None:
    """KiB per connection that has made a call and waits; the first tenth fills what is allocated once."""
    clients: list[HopClient] = []
    try:
        first = many // 10
        errors = await _dial(clients, router, first, tls)
        before = rss_bytes(pid)
        errors += await _dial(clients, router, many - first, tls)
        each = (rss_bytes(pid) - before) / (many - first)
        table.add(f"idle HTTP/2 connection {how}, KiB", "laya", value=each / _KIB, errors=errors)
    finally:
        await asyncio.gather(*(c.close() for c in clients))


async def _dial(clients: list[HopClient], router: str, count: int, tls: ssl.SSLContext | None = None) -> float:
    errors = 0.0
    for _ in range(count):
        client = HopClient(router, MODEL, tls=tls)
        clients.append(client)
        await client.connect()
        errors += (await client.load(1, 1)).errors
    return errors


def _idle_http1(table: Table, router: str, pid: int, many: int) -> None:
    host, _, port = router.rpartition(":")
    first = many // 10
    before = 0
    with contextlib.ExitStack() as stack:
        for i in range(many):
            conn = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            conn.sendall(_REQUEST)
            if not conn.recv(4096).startswith(b"HTTP/1.1 200"):
                raise RigError("the router does not answer over HTTP/1.1")
            if i == first - 1:
                before = rss_bytes(pid)
        each = (rss_bytes(pid) - before) / (many - first)
    table.add("idle HTTP/1.1 connection in clear, KiB", "laya", value=each / _KIB, errors=0.0)


async def _compare(table: Table, cases: Sequence[Case], seconds: float, rounds: int, budget: Budget) -> None:
    held: list[HopClient] = []
    clients: list[HopClient] = []
    try:
        for case in cases:
            address = case.target.address
            await _dial(held, address, case.connections)
            held += await _hold(address, case.streams)
            client = HopClient(address, MODEL)
            clients.append(client)
            await client.connect()
            await client.load(300, IN_FLIGHT)
        pairs = list(zip(cases, clients, strict=True))
        for case, client in turns(pairs, rounds, budget, "growth", WARM_LAP + 2 * seconds):
            await _round(table, case.target, client, seconds)
    finally:
        await asyncio.gather(*(c.close() for c in (*clients, *held)))


async def _round(table: Table, target: Target, client: HopClient, seconds: float) -> None:
    """One round: what the router uses while it is left alone, then what calls cost it."""
    used = cpu_seconds(target.pids)
    await asyncio.sleep(seconds)
    idle = (cpu_seconds(target.pids) - used) / seconds
    await client.load(1 << 60, IN_FLIGHT, seconds=WARM_LAP)
    used = cpu_seconds(target.pids)
    sample = await client.load(1 << 60, IN_FLIGHT, seconds=seconds)
    used = cpu_seconds(target.pids) - used
    done = len(sample.latencies)
    table.add(
        "growth",
        target.name,
        cpu_us_per_call=used / done * 1e6 if done else float("nan"),
        p50_ms=quantile(sample.latencies, 0.5) * 1e3,
        idle_cpu_percent=idle * 100,
        errors=float(sample.errors),
    )


async def _hold(router: str, count: int) -> list[HopClient]:
    """Open so many streams whose nodes have said a first word and no more."""
    loop = asyncio.get_running_loop()
    clients: list[HopClient] = []
    heard = Count()
    for i in range(count):
        if i % _PER_CLIENT == 0:
            clients.append(HopClient(router, MODEL))
            await clients[-1].connect()
        sink = Paced(heard, loop.create_future())
        sink.stream = clients[-1].open_stream(sink)
        if sink.stream is None:
            raise RigError(f"the router takes no more than {i} streams")
    deadline = loop.time() + _HOLD_LIMIT
    while heard.messages < count:
        if loop.time() > deadline:
            raise RigError(f"{heard.messages} of {count} streams have begun")
        await asyncio.sleep(0.01)
    return clients


def _certificate(folder: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that signs itself, and its key, as files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "laya benchmark")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "bench.crt", folder / "bench.key"
    cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    key_file.touch(0o600)
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(cert_file), str(key_file)
