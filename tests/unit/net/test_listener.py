"""One address for every protocol: binding, limits, and a graceful end, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from shared.config.schema import TlsConfig
from shared.errors import invalid
from shared.net.api import CANCEL, Headers, HttpExchange, ServerSink, ServerStream
from shared.net.flusher import Flusher
from shared.net.listener import Listener, ListenError
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.net.sniff import PREFACE
from shared.net.tls import client_context, server_context
from tests.support.attack import GOAWAY, HEADERS, SETTINGS, frame
from tests.support.certs import Authority
from tests.support.h2_rig import REQUEST, Asked
from tests.support.web import RawClient, until

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class House:
    """A listener and what came in."""

    exchanges: list[HttpExchange] = field(default_factory=list)
    grpc: int = 0
    aborted: int = 0
    answers: bool = True
    flusher: Flusher = field(default_factory=Flusher)
    listener: Listener | None = None

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        self.grpc += 1
        stream.respond([(b":status", b"200"), *invalid("no").grpc_trailers()], end=True)
        return None

    def handle(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        exchange.on_abort = self.count_abort
        if self.answers:
            exchange.respond(200, [], exchange.method + b" " + exchange.target + b" " + exchange.body)

    def count_abort(self) -> None:
        self.aborted += 1

    def make(self, changes: dict[str, object] | None = None, **options: Any) -> Listener:
        settings = replace(NetSettings(), **(changes or {}))  # type: ignore[arg-type]
        return Listener(self.accept, self.handle, settings, self.flusher, **options)


def kinds_of(data: bytes) -> list[int]:
    """The types of the HTTP/2 frames in what a peer has sent."""
    kinds = []
    while data:
        kinds.append(data[3])
        data = data[9 + int.from_bytes(data[:3]) :]
    return kinds


@asynccontextmanager
async def house(changes: dict[str, object] | None = None, **options: Any) -> AsyncIterator[tuple[House, Listener]]:
    made = House()
    listener = made.make(changes, **options)
    await listener.start()
    try:
        yield made, listener
    finally:
        await listener.close()
        assert listener.connections == 0


@asynccontextmanager
async def pool(address: str, made: House, **options: Any) -> AsyncIterator[Pool]:
    opened = Pool(address, NetSettings(), made.flusher, **options)
    opened.start()
    try:
        await until(lambda: opened.connected)
        yield opened
    finally:
        await opened.close()


async def curl(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "curl",
        "-sS",
        "--max-time",
        "5",
        "-w",
        " %{http_version} %{http_code}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_one_port_serves_http_1_http_2_and_grpc():
    async with house() as (made, listener):
        url = f"http://{listener.address}/v1/x?y=1"
        assert await curl("-d", "body", url) == "POST /v1/x?y=1 body 1.1 200"
        assert await curl("--http2-prior-knowledge", "-d", "body", url) == "POST /v1/x?y=1 body 2 200"
        assert await curl("--http2", "-d", "body", url) == "POST /v1/x?y=1 body 1.1 200"  # asks for an upgrade
        assert await curl("--http1.0", url) == "GET /v1/x?y=1  1.1 200"
        assert await curl("--http2-prior-knowledge", "-I", url) and made.exchanges[-1].method == b"HEAD"
        async with pool(listener.address, made) as upstream:
            asked = Asked()
            asked.stream = upstream.open(REQUEST, asked, end=True)
            await until(lambda: asked.closed)
            assert dict(asked.headers)[b"grpc-status"] == b"3"
        assert made.grpc == 1
        assert len(made.exchanges) == 5


async def test_an_old_http_1_connection_ends_with_an_answer_and_never_across_a_request():
    async with house(changes={"max_connection_age": 0.05}) as (made, listener):
        host, _, port = listener.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        ask = b"GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n"
        writer.write(ask)
        assert b"connection: close" not in await reader.readuntil(b"\r\n\r\n")
        await until(lambda: made.flusher.counters.reasons.get("max_age"))
        assert listener.connections == 1
        writer.write(ask)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b"connection: close" in answer and answer.count(b"HTTP/1.1 200") == 1
        writer.close()


async def test_large_bodies_pass_both_ways_over_every_protocol(tmp_path: Path):
    body = os.urandom(3 << 20).hex().encode()
    (tmp_path / "body").write_bytes(body)
    async with house() as (_, listener):
        for flag in ("--http1.1", "--http2-prior-knowledge"):
            for mode in ([], ["-H", "Transfer-Encoding: chunked"] if flag == "--http1.1" else []):
                got = await curl(flag, *mode, "--data-binary", f"@{tmp_path}/body", f"http://{listener.address}/p")
                assert got.split()[2].encode() == body
                assert got.endswith(" 200")


async def test_curl_reads_why_its_upload_is_refused_over_every_protocol(tmp_path: Path):
    (tmp_path / "body").write_bytes(b"x" * 5_000_000)
    async with house({"max_body_bytes": 1000}) as (_, listener):
        for flag in ("--http1.1", "--http2-prior-knowledge"):
            for upload in (["--data-binary", f"@{tmp_path}/body"], ["-X", "POST", "-T", f"{tmp_path}/body"]):
                got = await curl(flag, "-H", "expect:", *upload, f"http://{listener.address}/p")
                assert "limited to 1000 bytes" in got and got.endswith(" 413")


async def test_tls_serves_both_by_alpn(tmp_path: Path):
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    tls = server_context(TlsConfig(cert_file=pair.cert, key_file=pair.key))
    async with house(tls=tls) as (made, listener):
        url = f"https://{listener.address}/s"
        assert await curl("--cacert", authority.file, "-d", "b", url) == "POST /s b 2 200"
        assert await curl("--cacert", authority.file, "--http1.1", "-d", "b", url) == "POST /s b 1.1 200"
        assert await curl("--cacert", authority.file, "--no-alpn", "-d", "b", url) == "POST /s b 1.1 200"
        async with pool(listener.address, made, tls=client_context(TlsConfig(ca_file=authority.file))) as upstream:
            asked = Asked()
            upstream.open(REQUEST, asked, end=True)
            await until(lambda: asked.closed)
        assert made.grpc == 1


async def test_over_tls_too_a_client_that_does_not_read_stops_the_owner(tmp_path: Path):
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    tls = server_context(TlsConfig(cert_file=pair.cert, key_file=pair.key))
    trust = ssl.create_default_context(cafile=authority.file)
    async with house(tls=tls) as (made, listener):
        made.answers = False
        async with await RawClient.open(listener.port, ssl=trust, limit=1 << 16) as client:
            client.send(GET)
            await until(lambda: made.exchanges)
            (exchange,) = made.exchanges
            (served,) = listener._served
            exchange.start(200, [])
            written = 0
            while exchange.queued < 100_000:
                exchange.write(b"x" * 10_000)
                written += 10_000
                await asyncio.sleep(0)
            assert served._transport.get_write_buffer_size() < (64 << 10) + 20_000  # type: ignore[attr-defined]
            answer = asyncio.create_task(client.answer())
            await until(lambda: exchange.queued == 0)
            exchange.finish()
            assert (await answer).body == b"x" * written


async def test_a_tls_port_drops_what_is_not_tls(tmp_path: Path):
    pair = Authority(tmp_path).pair("server")
    tls = server_context(TlsConfig(cert_file=pair.cert, key_file=pair.key))
    async with house({"header_timeout": 0.2}, tls=tls) as (_, listener):
        for data in (GET, b""):
            async with await RawClient.open(listener.port) as client:
                client.send(data)
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await client.reader.readexactly(100)
        await until(lambda: listener.connections == 0)


async def test_a_name_with_two_addresses_is_served_on_both_with_one_port():
    async with house(host="localhost") as (_, listener):
        assert listener.address == f"localhost:{listener.port}"
        found = socket.getaddrinfo("localhost", listener.port, type=socket.SOCK_STREAM)
        for _family, _, _, _, address in found:
            async with await RawClient.open(listener.port, str(address[0])) as client:
                client.send(GET)
                assert (await client.answer()).status == 200


async def test_no_host_means_every_address_of_both_families():
    async with house(host="") as (_, listener):
        assert listener.address == f"0.0.0.0:{listener.port}"
        for host in ("127.0.0.1", "::1"):
            async with await RawClient.open(listener.port, host) as client:
                client.send(GET)
                assert (await client.answer()).status == 200


async def test_ipv6_addresses_are_shown_in_brackets():
    async with house(host="::1") as (made, listener):
        assert listener.address == f"[::1]:{listener.port}"
        async with await RawClient.open(listener.port, "::1") as client:
            client.send(GET)
            assert (await client.answer()).status == 200
        assert made.exchanges[0].peer.startswith("[::1]:")


async def test_accepted_sockets_send_at_once_and_find_dead_peers():
    async with house() as (_, listener), await RawClient.open(listener.port) as client:
        client.send(GET)
        await client.answer()
        (served,) = listener._served
        sock = served._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_a_taken_port_is_one_clear_sentence():
    async with house() as (made, listener):
        with pytest.raises(ListenError) as caught:
            await made.make(port=listener.port).start()
        assert str(caught.value) == (
            f"127.0.0.1:{listener.port} is in use by another process: stop it or choose another port."
        )


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_an_address_of_another_machine_is_one_clear_sentence(host: str):
    with pytest.raises(ListenError, match=rf"{host}.* is not an address of this machine"):
        await House().make(host=host).start()


async def test_a_port_can_be_shared_by_workers():
    async with house(reuse_port=True) as (made, first):
        second = made.make(port=first.port, reuse_port=True)
        await second.start()
        assert second.port == first.port
        await second.close()


async def test_a_unix_socket_is_private_replaces_a_dead_one_and_is_removed(tmp_path: Path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with house(path=str(path)) as (made, listener):
        assert listener.address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await curl("--unix-socket", str(path), "http://x/u") == "GET /u  1.1 200"
        assert made.exchanges[0].peer == "unix"
        with pytest.raises(ListenError, match=r"in use by another process"):
            await made.make(path=str(path)).start()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(ListenError, match=r"is not a socket"):
        await House().make(path=str(path)).start()
    assert path.read_text() == "precious"
    with pytest.raises(ListenError):
        await House().make(path=str(tmp_path / "no" / "s")).start()


async def test_connections_beyond_the_limit_are_refused_and_counted():
    async with house({"max_connections_served": 2}) as (made, listener):
        clients = [await RawClient.open(listener.port) for _ in range(2)]
        for client in clients:
            client.send(GET)
            assert (await client.answer()).status == 200
        async with await RawClient.open(listener.port) as third:
            third.send(GET)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await third.reader.readexactly(1)
        assert made.flusher.counters.reasons == {"max_connections": 1}
        clients[0].close()
        await until(lambda: listener.connections == 1)
        async with await RawClient.open(listener.port) as third:
            third.send(GET)
            assert (await third.answer()).status == 200
        clients[1].close()


async def test_close_lets_running_answers_end_and_closes_idle_connections():
    async with house() as (made, listener):
        idle = await RawClient.open(listener.port)
        idle.send(GET)
        await idle.answer()
        silent = await RawClient.open(listener.port)
        made.answers = False
        busy = await RawClient.open(listener.port)
        busy.send(GET)
        await until(lambda: len(made.exchanges) == 2 and listener.connections == 3)
        async with pool(listener.address, made) as upstream:
            asked = Asked()
            upstream.open([pair for pair in REQUEST if pair[0] != b"content-type"], asked, end=True)
            await until(lambda: len(made.exchanges) == 3)
            assert listener.streams == 2

            closing = asyncio.create_task(listener.close(grace=10, last_request=0.01))
            assert await idle.rest() == b""
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await silent.reader.readexactly(1)
            await until(lambda: not upstream.connected)  # GOAWAY
            with pytest.raises(ConnectionError):
                await RawClient.open(listener.port)
            assert not closing.done()

            made.exchanges[1].respond(200, [], b"done")
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"done", "close")
            made.exchanges[2].respond(200, [], b"done")
            await until(lambda: asked.closed)
            assert bytes(asked.data) == b"done"
            await asyncio.wait_for(closing, 5)
        assert made.aborted == 0


async def test_close_answers_what_crosses_it_and_says_that_it_was_the_last():
    async with house() as (made, listener):
        idle = await RawClient.open(listener.port)
        idle.send(GET)
        await idle.answer()
        silent = await RawClient.open(listener.port)
        await until(lambda: listener.connections == 2)
        closing = asyncio.create_task(listener.close(grace=10, last_request=10))
        await until(lambda: not listener.sockets)
        for client in (idle, silent):
            client.send(GET)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.rest() == b""
        await asyncio.wait_for(closing, 5)
        assert made.aborted == 0


async def test_a_connection_that_turns_out_to_be_http2_after_the_end_has_begun_is_served_and_told():
    async with house() as (made, listener):
        silent = await RawClient.open(listener.port)
        await until(lambda: listener.connections == 1)
        closing = asyncio.create_task(listener.close(grace=10, last_request=10))
        await until(lambda: not listener.sockets)
        head = b"\x82\x86\x84\x41\x01x"  # GET http / with an authority
        silent.send(PREFACE + frame(SETTINGS) + frame(HEADERS, 0x5, 1, head))
        kinds = kinds_of(await silent.reader.read(-1))
        assert kinds.count(GOAWAY) == 2
        assert HEADERS in kinds
        silent.close()
        await asyncio.wait_for(closing, 5)
        assert len(made.exchanges) == 1


async def test_another_listener_goes_on_with_the_sockets_and_no_connection_is_lost():
    async with house() as (made, first):
        heirs = [socket.socket(fileno=os.dup(sock.fileno())) for sock in first.sockets]
        await first.close()
        waiting = await RawClient.open(first.port)  # nobody accepts: it waits in the backlog
        waiting.send(GET)
        second = made.make(port=first.port, inherited=heirs)
        await second.start()
        assert second.port == first.port and second.sockets == heirs
        assert (await waiting.answer()).status == 200
        waiting.close()
        await second.close()


async def test_inherited_sockets_of_another_address_are_closed():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        made = House()
        listener = made.make(host="127.0.0.1", port=0, inherited=[other])
        await listener.start()
        assert listener.port == other.getsockname()[1]  # port 0 takes the one there is
        await listener.close()
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        listener = made.make(host="127.0.0.1", port=0, inherited=[other])
        await listener.start()
        assert other.fileno() == -1
        await listener.close()


async def test_close_cuts_off_what_does_not_end_in_time():
    async with house() as (made, listener):
        made.answers = False
        async with await RawClient.open(listener.port) as client, pool(listener.address, made) as upstream:
            client.send(GET)
            asked = Asked()
            upstream.open([pair for pair in REQUEST if pair[0] != b"content-type"], asked, end=True)
            await until(lambda: len(made.exchanges) == 2)
            await listener.close(grace=0.05)
            assert listener.connections == 0
            assert made.aborted == 2
            await until(lambda: asked.closed)
            assert asked.closed[0][0] == CANCEL or asked.closed[0][0] > 0


async def test_garbage_and_half_requests_leave_nothing_behind():
    async with house() as (made, listener):
        for data in (
            b"\xff\xfe\xfd",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage" * 9,
            GET[:9],
            b"PRI * ",
            GET + GET[:5],
        ):
            client = await RawClient.open(listener.port)
            client.send(data)
            await client.writer.drain()
            client.close()
        await until(lambda: listener.connections == 0)
        assert await curl(f"http://{listener.address}/still") == "GET /still  1.1 200"
        assert made.aborted == 0
