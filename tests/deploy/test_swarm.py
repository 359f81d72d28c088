"""A swarm of two hosts: the stack is deployed, updated under load, and loses a host, and clients get their tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from router_node.middleware.keys import KeyStore
from shared.client import LayaClient
from tests.support import docker, tools
from tests.support.docker import Engine
from tests.support.hosts import Host, hosts
from tests.support.images import valkey
from tests.support.ports import within
from tests.support.processes import ROOT

pytestmark = pytest.mark.timeout(900)  # the first test pays for the images

STACK = ROOT / "swarm" / "stack.yml"
GPU = ROOT / "swarm" / "gpu.yml"
VERSION, NEXT = "0.1.0", "0.1.1"
VALKEY = "laya-test/valkey:1"
SETTINGS = {
    "LAYA_ENGINE": "sim",
    "LAYA_ENGINE_NAME": "sim",
    "LAYA_MODEL_NAME": "sim",
    "LAYA_NODE_CPUS": "1",
    "LAYA_NODE_MEMORY": "1G",
    "LAYA_NODE_RESERVED": "128M",
    "LAYA_GPUS_PER_HOST": "1",
    "VALKEY_IMAGE": VALKEY,
}


class Swarm:
    """Two joined engines with the stack on them; the first is the manager and keeps the store."""

    def __init__(self, places: list[Host], engines: list[Engine], key: str, models: Path) -> None:
        self.hosts = places
        self.engines = engines
        self.key = key
        self._models = models

    @property
    def manager(self) -> Engine:
        return self.engines[0]

    @property
    def addresses(self) -> list[str]:
        """Each router's public address."""
        return [f"{host.address}:8000" for host in self.hosts]

    def deploy(self, version: str) -> None:
        """``docker stack deploy``, as docs/swarm.md has it; no registry is asked for what is there."""
        env = {**SETTINGS, "LAYA_VERSION": version, "LAYA_MODELS": str(self._models)}
        self.manager.run("stack", "deploy", "--resolve-image", "never", "-c", STACK, "-c", GPU, "laya", env=env)

    def state(self) -> str:
        """What runs where, for messages."""
        said = [self.manager.run("stack", "ps", "laya")]
        for engine in self.engines:
            for container in engine.run("ps", "-a", "-q").split()[:6]:
                log = engine.try_(["logs", "--tail", "12", container], 20)
                said.append(log.stdout[-1500:] + log.stderr[-1500:])
        return "\n".join(said)

    def updated(self, service: str) -> str:
        """State of a service's last update."""
        return self.manager.run(
            "service", "inspect", f"laya_{service}", "-f", "{{if .UpdateStatus}}{{.UpdateStatus.State}}{{end}}"
        )


def ask_http(address: str, key: str, timeout: float = 30.0) -> str:
    """A chat completion's text by HTTP."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"http://{address}/v1/chat/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


async def ask_grpc(client: LayaClient, timeout: float = 30.0) -> str:
    """A completion's text by gRPC."""
    return (await client.complete("Once", model="sim", max_tokens=4, timeout=timeout)).text


def nodes_seen(swarm: Swarm, number: int) -> int:
    """Ready nodes that a host's router knows, by its own command line."""
    engine = swarm.engines[number]
    found = engine.run("ps", "-q", "--filter", "label=com.docker.swarm.service.name=laya_router").split()
    if not found:
        return 0
    out = engine.try_(["exec", found[0], "laya", "nodes", "--json", "--admin", "127.0.0.1:8001"], 20)
    return sum(n["state"] == "ready" for n in json.loads(out.stdout)) if out.returncode == 0 else 0


@pytest.fixture(scope="module")
def swarm(built: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """The stack, deployed and ready on both hosts."""
    folder = tmp_path_factory.mktemp("swarm")
    valkey(built, VALKEY)
    names = [f"laya/{what}:{tag}" for what, tag in (("router", VERSION), ("node", f"{VERSION}-sim"))]
    with hosts(2) as places, contextlib.ExitStack() as stack:
        engines = []
        for i, host in enumerate(places):
            engine = Engine(host.namespace, ["--node-generic-resource", f"GPU=GPU-0000-{i}"])
            stack.callback(engine.close)
            engine.start()
            engine.copy_image(built, *names, VALKEY)
            engine.run("tag", names[0], f"laya/router:{NEXT}")
            engine.run("tag", names[1], f"laya/node:{NEXT}-sim")
            engines.append(engine)
        key = _join(places, engines, folder)
        running = Swarm(places, engines, key, folder)
        running.deploy(VERSION)
        for i, address in enumerate(running.addresses):
            within(90, lambda a=address: ask_http(a, key, 5), f"tokens from {address}", running.state)
            within(60, lambda i=i: nodes_seen(running, i) == 2, f"two nodes at router {i}", running.state)
        yield running


def _join(places: list[Host], engines: list[Engine], folder: Path) -> str:
    """Join the hosts, label them, make the secrets: docs/swarm.md, step by step. Returns an API key."""
    manager, worker = engines
    manager.run("swarm", "init", "--advertise-addr", places[0].address, "--listen-addr", places[0].address)
    token = manager.run("swarm", "join-token", "-q", "worker")
    worker.run("swarm", "join", "--token", token, "--advertise-addr", places[1].address, f"{places[0].address}:2377")
    for engine in engines:
        labels = ["laya.router=true", "laya.node=true"] + (["laya.store=true"] if engine is manager else [])
        node = engine.run("info", "-f", "{{.Swarm.NodeID}}")
        manager.run("node", "update", *(part for label in labels for part in ("--label-add", label)), node)
    password = secrets.token_hex(16)
    _, key = KeyStore(folder / "keys.json").add("tests")
    for name, value in (
        ("laya-cluster-token", secrets.token_hex(32)),
        ("laya-redis-password", password),
        ("laya-redis-url", f"redis://:{password}@store:6379/0"),
        ("laya-keys", (folder / "keys.json").read_text()),
    ):
        manager.run("secret", "create", name, "-", stdin=value)
    return key


async def test_both_hosts_give_tokens_by_grpc_and_http(swarm: Swarm) -> None:
    for address in swarm.addresses:
        assert await asyncio.to_thread(ask_http, address, swarm.key)
        async with LayaClient(address, swarm.key) as client:
            assert await ask_grpc(client)


def test_a_node_uses_the_gpu_that_the_swarm_gave_it(swarm: Swarm) -> None:
    for i, engine in enumerate(swarm.engines):
        container = engine.run("ps", "-q", "--filter", "label=com.docker.swarm.service.name=laya_node")
        pid = engine.run("exec", container, "sh", "-c", "cat /proc/1/task/1/children").split()[0]
        environment = engine.run("exec", container, "cat", f"/proc/{pid}/environ").split("\0")
        assert f"CUDA_VISIBLE_DEVICES=GPU-0000-{i}" in environment


def test_no_secret_is_in_the_environment(swarm: Swarm) -> None:
    for engine in swarm.engines:
        for container in engine.run("ps", "-q").split():
            text = engine.run("inspect", container)
            assert swarm.key not in text
            assert "redis://:" not in text


class Load:
    """Clients that know both hosts, and what became of their requests."""

    def __init__(self, swarm: Swarm, deadline: float = 30.0) -> None:
        self._swarm = swarm
        self._deadline = deadline
        self._stop = asyncio.Event()
        self.served = {"grpc": 0, "http": 0}
        self.failed: list[str] = []

    async def run(self, work: asyncio.Future[None]) -> None:
        """Ask until the work is done."""
        asking = [asyncio.create_task(self._grpc()) for _ in range(4)] + [
            asyncio.create_task(self._http(i)) for i in range(2)
        ]
        try:
            await work
        finally:
            self._stop.set()
            await asyncio.wait_for(asyncio.gather(*asking), self._deadline + 30)

    async def _grpc(self) -> None:
        # One channel over both addresses: gRPC itself goes to the other when one says goodbye.
        async with LayaClient("ipv4:" + ",".join(self._swarm.addresses), self._swarm.key) as client:
            while not self._stop.is_set():
                await self._count("grpc", ask_grpc(client, self._deadline))

    async def _http(self, first: int) -> None:
        order = self._swarm.addresses[first:] + self._swarm.addresses[:first]
        while not self._stop.is_set():
            await self._count("http", asyncio.to_thread(self._either, order))

    def _either(self, order: list[str]) -> str:
        """From the first host that answers: what a client with two addresses does when a connection breaks."""
        for address in order[:-1]:
            try:
                return ask_http(address, self._swarm.key, self._deadline)
            except ConnectionError:
                continue
            except urllib.error.URLError as e:
                if not isinstance(e.reason, ConnectionError):
                    raise
        return ask_http(order[-1], self._swarm.key, self._deadline)

    async def _count(self, kind: str, request: object) -> None:
        try:
            assert await request  # type: ignore[misc]
            self.served[kind] += 1
        except Exception as e:
            self.failed.append(f"{kind}: {type(e).__name__}: {e}")
        await asyncio.sleep(0.02)


async def test_an_update_under_load_loses_nothing(swarm: Swarm) -> None:
    def update() -> None:
        swarm.deploy(NEXT)
        for service in ("router", "node"):
            within(200, lambda s=service: swarm.updated(s) == "completed", f"{service} is updated", swarm.state)

    load = Load(swarm)
    await load.run(asyncio.ensure_future(asyncio.to_thread(update)))
    assert not load.failed, load.failed[:5]
    assert min(load.served.values()) > 50, load.served
    for engine in swarm.engines:
        images = engine.run("ps", "--format", "{{.Image}}")
        assert f"laya/router:{NEXT}" in images
        assert f"laya/router:{VERSION}" not in images


async def test_a_host_that_vanishes_takes_no_service_with_it(swarm: Swarm) -> None:
    await asyncio.to_thread(within, 60, lambda: nodes_seen(swarm, 0) == 2, "two nodes", swarm.state)
    swarm.hosts[1].unplug()
    try:
        async with LayaClient(swarm.addresses[0], swarm.key) as client:
            ends = time.monotonic() + 25
            served = 0
            while time.monotonic() < ends:
                # Some go to the lost node first; the router finds out within 15 s and asks the other.
                texts = await asyncio.gather(*(ask_grpc(client, 60) for _ in range(4)))
                served += sum(map(bool, texts))
        assert served >= 40
        assert await asyncio.to_thread(ask_http, swarm.addresses[0], swarm.key)
    finally:
        swarm.hosts[1].plug()
    await asyncio.to_thread(
        within, 90, lambda: ask_http(swarm.addresses[1], swarm.key, 5), "the host is back", swarm.state
    )


def test_stack_files_are_sound() -> None:
    client = next((c for c in ("/usr/local/bin/docker", docker.cli()) if c and shutil.which(c)), "")
    more = [()] + [(ROOT / "swarm" / name,) for name in ("gpu.yml", "encrypted.yml", "load.yml")]
    for files in ((STACK, *one) for one in more):
        flags = [part for file in files for part in ("-c", str(file))]
        done = tools.run(client, "stack", "config", *flags, timeout=30)
        if "unknown shorthand flag" in done.stderr:
            pytest.skip("this docker client has no `stack config`")
        assert done.returncode == 0, done.stderr
        assert "latest" not in done.stdout


def test_processes_are_given_longer_than_they_are_told() -> None:
    stack = yaml.safe_load(STACK.read_text())
    for service, stop in (("router", 5), ("node", 20)):
        told = yaml.safe_load((ROOT / "swarm" / f"{service}.yaml").read_text())["server"]["drain_timeout"]
        grace = float(stack["services"][service]["stop_grace_period"].removesuffix("s"))
        assert grace >= told + stop
