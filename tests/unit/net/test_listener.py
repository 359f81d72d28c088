"""One address for every protocol: binding, limits, and what is served, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from shared.net.listener import ListenError
from tests.support.h2_rig import REQUEST, Asked
from tests.support.listener_house import GET, House, curl, house, pool
from tests.support.web import RawClient, until


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
