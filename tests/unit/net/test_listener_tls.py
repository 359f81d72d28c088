"""A listener over TLS serves and limits what one in clear does."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from shared.config.schema import TlsConfig
from shared.net.tls import client_context, server_context
from tests.support.certs import Authority
from tests.support.h2_rig import REQUEST, Asked
from tests.support.listener_house import GET, curl, house, pool
from tests.support.web import RawClient, until


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
