"""What may be put under load, and what is said of a target that is down, slow, closed or half up."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.bench import target
from loadtest.bench.client import Client
from loadtest.bench.target import NotYours, TargetDown, environment, half_up, loopback, parse, probe
from tests.support.ports import free_port
from tests.support.sse_server import Reply, Script, sse_server


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "[::1]"])
def test_this_machine_may_be_put_under_load(host: str) -> None:
    assert loopback(host) and parse(f"{host}:80", owned=False) == f"{host}:80"


@pytest.mark.parametrize("host", ["10.0.0.1", "example.org", "[2001:db8::1]", "localhost.example.org", "0.0.0.0"])
def test_another_host_must_be_claimed(host: str) -> None:
    with pytest.raises(NotYours, match="--i-own-this-host"):
        parse(f"{host}:80", owned=False)
    assert parse(f"http://{host}:80/", owned=True) == f"{host}:80"


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":80", "localhost:http", "localhost:70000"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        parse(address, owned=True)


async def down(script: Script, model: str = "", names: tuple[str, ...] = ("m",)) -> TargetDown:
    async with sse_server(script, names) as server:
        client = Client(server.address)
        with pytest.raises(TargetDown) as caught:
            await probe(client, server.address, model)
        client.close()
        return caught.value


async def test_a_probe_learns_the_model_and_what_a_word_is() -> None:
    usage = {"prompt_tokens": 130, "completion_tokens": 2}
    async with sse_server(lambda body: Reply(usage=usage), ("first", "second")) as server:
        client = Client(server.address)
        found = await probe(client, server.address, "")
        assert found.model == "first" and found.tokens_per_word == pytest.approx(130 / 64)
        assert (await probe(client, server.address, "second")).model == "second"
        client.close()


async def test_a_server_without_usage_is_warned_of() -> None:
    async with sse_server(lambda body: Reply(usage=None)) as server:
        client = Client(server.address)
        found = await probe(client, server.address, "")
        assert found.tokens_per_word == 1.0 and "no usage" in found.warnings[0]
        client.close()


async def test_nothing_there() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(TargetDown, match=f"nothing answers at {address}") as caught:
        await probe(Client(address), address, "")
    assert not caught.value.refused


async def test_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_FIRST", 0.1)
    error = await down(lambda body: Reply(hang=True))
    assert "no answer within 0.1 s" in str(error) and not error.refused


async def test_half_up() -> None:
    assert "does not serve a first request (no_nodes)" in str(
        await down(lambda body: Reply(503, error={"code": "no_nodes"}))
    )
    assert "serves no model now" in str(await down(lambda body: Reply(), names=()))
    assert "broke a first request off" in str(await down(lambda body: Reply(cut=True, finish=None), model="m"))


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_what_is_no_router_is_told(status: int) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 4\r\n\r\n<p/>" % status)
        writer.close()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(TargetDown, match=f"{address} answers HTTP, but .* no Laya router") as caught:
            await probe(Client(address), address, "")
    assert not caught.value.refused


async def test_closed() -> None:
    error = await down(lambda body: Reply(401, error={"code": "key_missing"}))
    assert error.refused and "API key" in str(error)
    error = await down(lambda body: Reply(), model="other")
    assert error.refused and "no model 'other'; it has m" in str(error)


async def test_a_private_listener_that_is_not_there_is_a_warning() -> None:
    addresses, warnings = await half_up(f"127.0.0.1:{free_port()}", "")
    assert addresses == [] and "does not answer" in warnings[0]


def test_the_environment_names_code_and_machine() -> None:
    found = environment()
    assert {"laya", "commit", "python", "system", "processor", "cores", "memory", "load average before"} <= set(found)
    assert all(found.values())
