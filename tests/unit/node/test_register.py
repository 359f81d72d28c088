"""Registration in a real store: signed, refreshed, withdrawn, and never in the way."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
import redis

from inference_node.register import Registrar, advertised
from inference_node.state import NodeState
from router_node.discovery import registration
from router_node.discovery.registration import RecordError
from shared import logging as logs
from shared.config.schema import Config, InferenceConfig, ServerConfig
from tests.support.ports import free_port, until

LOG = logs.get("test")


def state(url: str, **inference) -> NodeState:
    inference.setdefault("heartbeat", 0.05)
    inference.setdefault("registration_ttl", 0.5)
    server = ServerConfig(redis=url, cluster="c1", cluster_token="s3cret")
    return NodeState(Config(server=server, inference=InferenceConfig(model="demo", aliases=["b"], **inference)), "n1")


def record(client: redis.Redis) -> registration.Registration | None:
    raw: Any = client.get(registration.node_key("c1", "n1"))
    return None if raw is None else registration.verify(raw, "n1", "c1", b"s3cret", time.time())


async def test_a_node_registers_signed_beats_and_withdraws(valkey):
    client = redis.Redis.from_url(valkey.url)
    heard: Any = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    heard.subscribe(registration.events_channel("c1"))
    it = state(valkey.url)
    registrar = Registrar(it, "127.0.0.1:7001", LOG)
    registrar.start("rev9")
    await until(lambda: registrar.up, "it is registered")
    first = record(client)
    assert first is not None
    assert (first.address, first.model, first.aliases, first.revision) == ("127.0.0.1:7001", "demo", ("b",), "rev9")
    assert first.boot_id == it.boot_id and client.smembers(registration.index_key("c1")) == {b"n1"}
    assert 0 < client.pttl(registration.node_key("c1", "n1")) <= 500
    await until(lambda: (record(client) or first).issued_at > first.issued_at, "it beats")
    await registrar.close()
    assert record(client) is None and not client.exists(registration.index_key("c1"))
    messages: list[Any] = []

    def both() -> bool:
        messages.append(heard.get_message())
        return len([m for m in messages if m]) >= 2

    await until(both, "both announced")
    client.close()


async def test_a_successors_record_is_left_alone(valkey):
    old, new = state(valkey.url), state(valkey.url)
    first, second = Registrar(old, "127.0.0.1:7001", LOG), Registrar(new, "127.0.0.1:7002", LOG)
    first.start()
    await until(lambda: first.up, "the old one is registered")
    task = first._task
    assert task is not None
    task.cancel()
    await asyncio.wait({task})
    second.start()
    await until(lambda: second.up, "the new one is registered")
    await first.close()
    client = redis.Redis.from_url(valkey.url)
    found = record(client)
    assert found is not None and found.address == "127.0.0.1:7002"
    await second.close()
    client.close()


async def test_a_store_that_is_away_is_tried_again_and_closing_does_not_hang():
    registrar = Registrar(state(f"redis://127.0.0.1:{free_port()}"), "127.0.0.1:7001", LOG)
    registrar.start()
    await until(lambda: registrar._told_down, "it noticed")
    assert not registrar.up
    began = time.monotonic()
    await registrar.close()
    assert time.monotonic() - began < 1.5


async def test_a_store_that_comes_back_gets_the_record_again(valkey):
    registrar = Registrar(state(valkey.url), "127.0.0.1:7001", LOG)
    registrar.start()
    await until(lambda: registrar.up, "registered")
    client = redis.Redis.from_url(valkey.url)
    client.flushall()
    await until(lambda: record(client) is not None, "registered again")
    await registrar.close()
    client.close()


async def test_a_record_that_no_router_would_take_is_refused_at_start():
    with pytest.raises(RecordError, match="address"):
        Registrar(state("redis://127.0.0.1:1"), "nowhere", LOG)


def test_the_address_routers_dial():
    def config(**kw: Any) -> Any:
        return Config(server=ServerConfig(redis="redis://127.0.0.1:6379"), inference=InferenceConfig(**kw))

    assert advertised(config(advertise="n1.example:7"), "127.0.0.1:9", 9) == "n1.example:7"
    assert advertised(config(), "127.0.0.1:9", 9) == "127.0.0.1:9"
    assert advertised(config(host="0.0.0.0"), "0.0.0.0:9", 9) == "127.0.0.1:9"
    assert advertised(config(host="localhost"), "localhost:9", 9) == "localhost:9"


@pytest.mark.parametrize(
    "known, address",
    [
        ({"pod-0": "10.1.2.3"}, "10.1.2.3:9"),  # a container, while the store's name has no address yet
        ({"pod-0": "fd00::5"}, "[fd00::5]:9"),
        ({"pod-0": "127.0.1.1"}, "pod-0:9"),  # a machine that calls itself loopback
        ({"store": "127.0.0.1", "pod-0": "10.1.2.3"}, "127.0.0.1:9"),
        ({}, "pod-0:9"),
    ],
)
def test_the_address_of_a_node_that_binds_every_one(
    known: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        if host not in known:
            raise socket.gaierror("no such name")
        family = socket.AF_INET6 if ":" in known[host] else socket.AF_INET
        return [(family, socket.SOCK_DGRAM, 17, "", (known[host], port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-0")
    config = Config(server=ServerConfig(redis="redis://store:6379"), inference=InferenceConfig(host="::"))
    assert advertised(config, "[::]:9", 9) == address
    Registrar(NodeState(config, "n1"), address, LOG)  # every one is a record that routers take
