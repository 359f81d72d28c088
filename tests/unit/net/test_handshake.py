"""TLS connections that are not settled yet: counted, bounded in number and time, handed on without losing a byte."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import pytest

from shared.config.schema import TlsConfig
from shared.net.tls import server_context
from tests.support.certs import Authority
from tests.support.listener_house import GET, house
from tests.support.web import RawClient, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("handshake"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ssl.SSLContext:
    pair = authority.pair("server")
    return server_context(TlsConfig(cert_file=pair.cert, key_file=pair.key))


@pytest.fixture
def trust(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


class Memory:
    """A TLS client of which every flight is a test's to send, or not."""

    def __init__(self, client: RawClient, trust: ssl.SSLContext) -> None:
        self.client = client
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = trust.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def handshake(self) -> None:
        """Finish it, but keep the last flight back."""
        while True:
            try:
                self.tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                self.client.send(self.outgoing.read())
                self.incoming.write(await self.client.reader.read(65_536))

    async def answer(self) -> bytes:
        """The first bytes of an answer."""
        async with asyncio.timeout(5):
            while True:
                try:
                    return self.tls.read(65_536)
                except ssl.SSLWantReadError:
                    self.incoming.write(await self.client.reader.read(65_536))


async def test_handshakes_that_do_not_go_on_count_as_connections_and_have_their_time(
    tls: ssl.SSLContext, trust: ssl.SSLContext
):
    limits = {"max_connections_served": 3, "header_timeout": 0.5}
    async with house(limits, tls=tls) as (made, listener):
        silent = [await RawClient.open(listener.port) for _ in range(5)]
        reasons = made.flusher.counters.reasons
        await until(lambda: listener.connections == 3 and reasons == {"max_connections": 2})
        await until(lambda: listener.connections == 0)
        assert reasons == {"max_connections": 2, "tls_timeout": 3}
        async with await RawClient.open(listener.port, ssl=trust) as client:
            client.send(GET)
            assert (await client.answer()).status == 200
        for one in silent:
            one.close()


async def test_what_is_not_tls_is_dropped_and_counted(tls: ssl.SSLContext):
    async with house(tls=tls) as (made, listener):
        async with await RawClient.open(listener.port) as client:
            client.send(GET)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.reader.readexactly(100)
        await until(lambda: listener.connections == 0)
        assert made.flusher.counters.reasons == {"tls_failed": 1}


async def test_a_client_that_leaves_within_a_handshake_leaves_nothing(tls: ssl.SSLContext, trust: ssl.SSLContext):
    async with house(tls=tls) as (made, listener):
        for part in (b"", b"\x16\x03\x01"):
            async with await RawClient.open(listener.port) as client:
                client.send(part)
                await until(lambda: listener.connections == 1)
            await until(lambda: listener.connections == 0)
        async with await RawClient.open(listener.port) as client:
            await Memory(client, trust).handshake()
            client.writer.transport.abort()
        await until(lambda: listener.connections == 0)
        assert not made.exchanges


async def test_a_request_in_one_packet_with_the_end_of_the_handshake_is_answered(
    tls: ssl.SSLContext, trust: ssl.SSLContext
):
    trust.set_alpn_protocols(["http/1.1"])
    async with house(tls=tls) as (_, listener), await RawClient.open(listener.port) as client:
        memory = Memory(client, trust)
        await memory.handshake()
        memory.tls.write(GET)
        client.send(memory.outgoing.read())
        assert (await memory.answer()).startswith(b"HTTP/1.1 200 ")


async def test_a_request_and_a_goodbye_in_one_packet_with_it_leave_nothing(tls: ssl.SSLContext, trust: ssl.SSLContext):
    async with house(tls=tls) as (made, listener):
        made.answers = False
        async with await RawClient.open(listener.port) as client:
            memory = Memory(client, trust)
            await memory.handshake()
            memory.tls.write(GET)
            with pytest.raises(ssl.SSLWantReadError):
                memory.tls.unwrap()
            client.send(memory.outgoing.read())
            await until(lambda: listener.connections == 0)
        assert made.aborted == len(made.exchanges)


async def test_close_waits_for_a_handshake_that_goes_on_and_cuts_off_one_that_does_not(
    tls: ssl.SSLContext, trust: ssl.SSLContext
):
    async with house(tls=tls) as (made, listener):
        silent = await RawClient.open(listener.port)
        async with await RawClient.open(listener.port) as client:
            memory = Memory(client, trust)
            await memory.handshake()
            await until(lambda: listener.connections == 2)
            closing = asyncio.create_task(listener.close(grace=5, last_request=0.5))
            await until(lambda: not listener.sockets)
            memory.tls.write(GET)
            client.send(memory.outgoing.read())
            answer = await memory.answer()
            assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await silent.reader.readexactly(1)
        await asyncio.wait_for(closing, 5)
        silent.close()
        assert len(made.exchanges) == 1


async def test_a_refused_connection_is_closed_before_a_word(tls: ssl.SSLContext):
    async with house({"max_connections_served": 0}, tls=tls) as (made, listener):
        with socket.create_connection(("127.0.0.1", listener.port), 5) as plain:
            plain.setblocking(False)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                if not await asyncio.wait_for(asyncio.get_running_loop().sock_recv(plain, 1), 5):
                    raise ConnectionError
        assert made.flusher.counters.reasons == {"max_connections": 1}


async def test_accepted_sockets_send_at_once_and_find_dead_peers_over_tls_too(
    tls: ssl.SSLContext, trust: ssl.SSLContext
):
    async with house(tls=tls) as (_, listener), await RawClient.open(listener.port, ssl=trust) as client:
        client.send(GET)
        await client.answer()
        (served,) = listener._served
        sock = served._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_without_an_open_file_left_it_waits_and_then_goes_on(
    tls: ssl.SSLContext, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
):
    real, left = socket.socket.accept, [3]

    def accept(self: socket.socket) -> object:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(self)

    monkeypatch.setattr("shared.net.handshake._PAUSE", 0.01)
    async with house(tls=tls) as (made, listener):
        monkeypatch.setattr(socket.socket, "accept", accept)
        async with await RawClient.open(listener.port, ssl=trust) as client:
            client.send(GET)
            assert (await client.answer()).status == 200
        assert made.flusher.counters.reasons == {"no_open_files": 3}
