"""What the chart's containers would run, run here: their commands, configuration files and environment."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from router_node.middleware.keys import KeyStore
from shared.client import LayaClient
from tests.support.chart import CHART, SIM, Manifest, config_of, one, render
from tests.support.ports import eventually, free_port
from tests.support.processes import ROOT, Proc, fetch
from tests.support.valkey import Valkey

MODULES = {"laya-router": "router_node.main", "laya-node": "inference_node.main"}


def entrypoint(dockerfile: str) -> list[str]:
    """What an image starts, without its init."""
    lines = (ROOT / dockerfile).read_text().splitlines()
    command: list[str] = json.loads(next(li for li in lines if li.startswith("ENTRYPOINT")).split(" ", 1)[1])
    assert command[:2] == ["/usr/bin/tini", "--"]
    return command[2:]


class Pod:
    """One container of a rendered pod: its files below a folder, its environment with secrets in place."""

    def __init__(self, spec: Manifest, config: Manifest, secret: dict[str, str], folder: Path) -> None:
        self.container = spec["containers"][0]
        self.config = config
        self.folder = folder
        self.env: dict[str, str] = {}
        for entry in self.container["env"]:
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = secret[source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                value = "pod-0"
            else:
                value = entry["value"]
                for name, known in self.env.items():
                    value = value.replace(f"$({name})", known)
            self.env[entry["name"]] = value

    def start(self, dockerfile: str) -> Proc:
        """Start what the image would, with the rendered arguments."""
        args = [*self.container["args"]]
        file = self.folder / "laya.yaml"
        file.write_text(yaml.safe_dump(self.config))
        assert args == ["--config", "/etc/laya/laya.yaml"]
        return Proc(self.container["name"], [MODULES[entrypoint(dockerfile)[0]], "--config", str(file)], self.env)


@pytest.fixture
def store() -> Iterator[Valkey]:
    server = Valkey("letters123")
    server.start()
    yield server
    server.close()


async def test_what_is_rendered_serves_a_request(helm: Path, tmp_path: Path, store: Valkey) -> None:
    manifests = render(helm, tmp_path, SIM, {"router": {"drainSeconds": 5}, "nodeDefaults": {"drainSeconds": 5}})
    keys = tmp_path / "keys.json"
    _, key = KeyStore(keys).add("tenant")
    secret = {"cluster-token": "a-token-of-the-cluster", "redis-password": "letters123", "keys.json": ""}
    router = _pod(manifests, "Deployment", "rel-laya-router", secret, tmp_path / "router")
    node = _pod(manifests, "StatefulSet", "rel-laya-sim", secret, tmp_path / "node")
    # The cluster's network, here: loopback and free ports.
    for pod in (router, node):
        url = pod.env["LAYA_SERVER__REDIS"]
        assert url == "redis://:letters123@rel-laya-store:6379/0"
        pod.env["LAYA_SERVER__REDIS"] = store.url
    assert router.config["server"]["host"] == node.config["inference"]["host"] == "0.0.0.0"
    assert router.config["server"]["keys_file"] == "/etc/laya/keys/keys.json"
    router.config["server"] |= {"host": "127.0.0.1", "port": 0, "keys_file": str(keys)}
    router.config["router"] |= {"admin_host": "127.0.0.1", "admin_port": free_port()}
    node.config["inference"] |= {"host": "127.0.0.1", "port": 0}
    running: list[Proc] = []
    try:
        running.append(node.start("inference_node/Dockerfile"))
        running.append(router.start("router_node/Dockerfile"))
        await _ready(router, running[1], node, running[0])
        async with LayaClient(running[1].address, key) as client:
            answer = await client.complete("Once upon a time", model="sim", max_tokens=4)
        assert answer.text
        assert await asyncio.to_thread(ask_http, running[1].address, key)
        check_metrics(
            fetch(f"http://{running[1].ready['admin']}/metrics"), fetch(f"http://{running[0].address}/metrics")
        )
    finally:
        codes = [proc.stop() for proc in reversed(running)]
    assert codes == [0, 0]


def ask_http(address: str, key: str) -> str:
    """A chat completion's text."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"http://{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def check_metrics(*pages: str) -> None:
    """The dashboard and the alerts ask for nothing that routers and nodes do not have."""
    there = set().union(*(names_of(page) for page in pages))
    assert asked_for() - there <= {"laya_node_gpu_memory_ratio"}  # for want of a GPU here


async def _ready(router: Pod, router_proc: Proc, node: Pod, node_proc: Proc) -> None:
    """Until the probes that the chart sets say so."""
    node_probe = node.container["readinessProbe"]["httpGet"]["path"]
    router_probe = router.container["readinessProbe"]["httpGet"]["path"]

    async def answered(address: str, path: str) -> bool:
        try:
            return bool(fetch(f"http://{address}{path}"))
        except OSError:
            return False

    await eventually(lambda: answered(node_proc.address, node_probe), "the node is ready", 30)
    await eventually(lambda: answered(str(router_proc.ready["admin"]), router_probe), "the router is ready", 30)
    assert fetch(f"http://{node_proc.address}{node.container['livenessProbe']['httpGet']['path']}")


def _pod(manifests: list[Manifest], kind: str, name: str, secret: dict[str, str], folder: Path) -> Pod:
    folder.mkdir()
    spec = one(manifests, kind, name)["spec"]["template"]["spec"]
    return Pod(spec, config_of(manifests, name), secret, folder)


def test_a_container_without_its_configuration_says_so_at_once(tmp_path: Path) -> None:
    for module in MODULES.values():
        proc = Proc("bare", [module, "--config", "/etc/laya/not-there.yaml"])
        try:
            assert proc.popen.wait(20) == 2
            lines = proc.output().strip().splitlines()
            assert len(lines) == 1
            assert "/etc/laya/not-there.yaml: cannot be read" in lines[0]
        finally:
            proc.stop()


def names_of(expression: str) -> set[str]:
    """Metrics of ours that an expression asks for, without the ending of a histogram's series."""
    return {name.removesuffix("_bucket") for name in re.findall(r"\blaya_[a-z_]+", expression)}


def asked_for() -> set[str]:
    """Every metric that the dashboard and the alerts name."""
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    expressions = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    expressions += [r["expr"] for g in rules["groups"] for r in g["rules"]]
    return set().union(*map(names_of, expressions))
