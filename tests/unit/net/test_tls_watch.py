"""Certificates that change under a running process."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from shared.config.schema import ConfigError, TlsConfig
from shared.net.tls import client_context
from shared.net.tls_watch import CertificateWatch
from tests.support.certs import Authority, Pair
from tests.support.ports import until

Serve = Callable[[ssl.SSLContext], Awaitable[int]]


class Files:
    """A pair in files of fixed names, which later pairs replace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.pair = Pair(str(folder / "live.crt"), str(folder / "live.key"))
        self.put("first")

    def put(self, name: str, authority: Authority | None = None, key_of: str = "") -> None:
        made = (authority or self.authority).pair(name)
        shutil.copy(made.cert, self.pair.cert)
        shutil.copy(str(self.folder / f"{key_of}.key") if key_of else made.key, self.pair.key)

    def lose_key(self) -> None:
        Path(self.pair.key).unlink()

    @property
    def config(self) -> TlsConfig:
        return TlsConfig(cert_file=self.pair.cert, key_file=self.pair.key)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def watch() -> AsyncIterator[CertificateWatch]:
    made = CertificateWatch(interval=0.01)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts an echo server on a context; its port."""
    servers: list[asyncio.Server] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def start(context: ssl.SSLContext) -> int:
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()


async def subject(port: int, context: ssl.SSLContext) -> str:
    """Whose certificate the server shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert()
        return str(dict(field[0] for field in shown["subject"])["commonName"])
    finally:
        writer.close()


def asking(files: Files) -> ssl.SSLContext:
    context = client_context(TlsConfig(ca_file=files.authority.file))
    assert context is not None
    context.set_alpn_protocols(["http/1.1"])
    return context


async def test_a_new_pair_is_shown_from_the_next_handshake_on(files: Files, watch: CertificateWatch, serve: Serve):
    context = watch.server(files.config)
    assert context is not None
    watch.start()
    port = await serve(context)
    assert await subject(port, asking(files)) == "first"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asking(files), server_hostname="localhost")
    files.put("second")
    await until(lambda: watch.reloaded == 1, "the new pair is loaded")
    assert await subject(port, asking(files)) == "second"
    writer.write(b"still here")
    assert await asyncio.wait_for(reader.readexactly(10), 5) == b"still here"
    writer.close()


async def test_a_bad_pair_keeps_the_old_one_and_is_logged_once(
    files: Files, watch: CertificateWatch, serve: Serve, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR, "laya.tls")
    context = watch.server(files.config)
    assert context is not None
    watch.start()
    port = await serve(context)
    files.put("wrong", key_of="first")
    await until(lambda: watch.refused == 1, "the bad pair was seen")
    for _ in range(5):
        assert await subject(port, asking(files)) == "first"
    files.put("third")
    await until(lambda: watch.reloaded == 1, "the repaired pair is loaded")
    assert await subject(port, asking(files)) == "third"
    assert [record.message for record in caplog.records] == ["certificates_not_reloaded"]


async def test_files_that_vanish_change_nothing(files: Files, watch: CertificateWatch, serve: Serve):
    context = watch.server(files.config)
    assert context is not None
    watch.start()
    port = await serve(context)
    files.lose_key()
    await until(lambda: watch.refused == 1, "the loss was seen")
    assert await subject(port, asking(files)) == "first"


async def test_an_authority_that_is_replaced_is_believed_no_more(files: Files, watch: CertificateWatch, serve: Serve):
    ca = files.folder / "live-ca.pem"
    shutil.copy(files.authority.file, ca)
    server = CertificateWatch().server(files.config)
    client = watch.client(TlsConfig(ca_file=str(ca)))
    assert server is not None and client is not None
    watch.start()
    port = await serve(server)
    assert await subject(port, client) == "first"
    other = Authority(files.folder, "another authority")
    shutil.copy(other.file, ca)
    await until(lambda: watch.reloaded == 1, "the new authority is loaded")
    with pytest.raises(ssl.SSLCertVerificationError):
        await subject(port, client)


def test_a_pair_that_is_still_being_written_is_waited_for(files: Files):
    watch = CertificateWatch()
    watch.server(files.config)
    (watched,) = watch._watched
    assert not watched.changed()
    Path(files.pair.cert).write_bytes(Path(files.pair.cert).read_bytes() + b"\n")
    assert not watched.changed()  # seen for the first time
    files.put("second")
    assert not watched.changed()  # and different again
    assert watched.changed()
    assert not watched.changed()


def test_what_is_wrong_at_the_start_is_said_at_the_start(files: Files):
    watch = CertificateWatch()
    assert watch.server(TlsConfig()) is None
    assert watch.client(TlsConfig()) is None
    with pytest.raises(ConfigError, match="server.tls.key_file"):
        watch.server(TlsConfig(cert_file=files.pair.cert, key_file="/nowhere"))
