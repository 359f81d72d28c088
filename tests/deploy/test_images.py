"""The images: what they are made of, how they start and stop, and the Compose file that joins them."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tools
from tests.support.docker import Engine
from tests.support.hosts import Host, hosts
from tests.support.images import PYTHON_IMAGE, build, torch_index, valkey
from tests.support.ports import within
from tests.support.processes import ROOT, fetch

pytestmark = pytest.mark.timeout(900)  # the first test pays for the images

ROUTER, NODE = "laya/router:0.1.0", "laya/node:0.1.0-sim"
VALKEY = "laya-test/valkey:1"


@pytest.mark.parametrize("image", [ROUTER, NODE])
def test_an_image_says_what_it_is_and_runs_as_nobody(built: Engine, image: str) -> None:
    config = json.loads(built.run("inspect", image))[0]["Config"]
    assert config["User"] == "10001:10001"
    assert config["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "laya", "health"]
    assert config["Entrypoint"][0] == "/usr/bin/tini"
    assert config["StopSignal"] == "SIGTERM"


def test_the_router_adds_little_to_its_base(built: Engine) -> None:
    size, base = (int(built.run("inspect", "-f", "{{.Size}}", name)) for name in (ROUTER, PYTHON_IMAGE))
    assert size - base < 120e6


@pytest.mark.parametrize("image", [ROUTER, NODE])
def test_an_image_has_the_compiled_path_and_no_compiler(built: Engine, image: str) -> None:
    def sh(script: str) -> str:
        return built.run("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", script)

    assert "compiled" in sh("laya --version")
    assert sh("command -v gcc cc g++ pip || true") == ""


@pytest.mark.parametrize("image", [ROUTER, NODE])
def test_a_container_without_its_configuration_ends_at_once(built: Engine, image: str) -> None:
    done = built.try_(["run", "--rm", "--network", "none", image])
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert "/etc/laya/laya.yaml: cannot be read" in lines[0]


def test_a_model_that_cannot_be_read_ends_at_once(built: Engine) -> None:
    done = built.try_(["run", "--rm", "--network", "none", NODE, "--engine", "auto", "--model", "/models/not-there"])
    assert done.returncode in (2, 3)
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_container_on_a_read_only_root_gets_healthy_and_stops_when_told(built: Engine) -> None:
    flags = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    node = ["--engine", "sim", "--host", "127.0.0.1", "--port", "9000"]
    name = f"laya-test-{secrets.token_hex(4)}"
    health = ["--health-interval", "1s"]
    built.run("run", "-d", "--name", name, "--network", "none", *health, *flags, NODE, *node)
    try:
        state = "{{.State.Health.Status}}"
        within(30, lambda: built.run("inspect", "-f", state, name) == "healthy", "healthy")
        began = time.monotonic()
        built.run("stop", "-t", "20", name)
        assert time.monotonic() - began < 10
        assert built.run("inspect", "-f", "{{.State.ExitCode}}", name) == "0"
        log = built.try_(["logs", name])
        assert "node_stopped" in log.stdout + log.stderr
    finally:
        built.run("rm", "-f", name)


def test_the_image_for_cpus_has_an_engine_and_no_compiler(built: Engine) -> None:
    tag = "laya/node:0.1.0-cpu"
    with torch_index() as url:
        build(built, "inference_node/Dockerfile", tag, "--target", "cpu", "--build-arg", f"EXTRA_INDEX={url}")
    script = (
        "command -v hf && python -c 'import torch, transformers; print(torch.__version__)' && ! command -v gcc cc g++"
    )
    said = built.run("run", "--rm", "--network", "none", "--entrypoint", "sh", tag, "-c", script, timeout=120)
    assert said.splitlines()[0] == "/opt/laya/bin/hf"
    assert said.splitlines()[1].endswith("+cpu")
    # The engine is found, and the model is looked for: with no network and no such folder that ends at once.
    done = built.try_(["run", "--rm", "--network", "none", tag, "--model", "/models/not-there"], 60)
    assert done.returncode == 2
    assert "/models/not-there" in done.stderr


@pytest.fixture(scope="module")
def place(built: Engine) -> Iterator[tuple[Host, Engine]]:
    """A host with an engine that has our images and a bridge of its own."""
    valkey(built, VALKEY)
    with hosts(1) as (host,):
        engine = Engine(host.namespace)
        try:
            engine.start()
            engine.copy_image(built, ROUTER, NODE, VALKEY)
            yield host, engine
        finally:
            engine.close()


def test_compose_brings_up_a_router_and_two_nodes(place: tuple[Host, Engine], tmp_path: Path) -> None:
    binary = tools.compose()
    if binary is None:
        pytest.skip(f"Compose is not installed; {tools.INSTALL}")
    host, engine = place
    # Published on every address, because the tests stand outside this host.
    text = re.sub(r'"127\.0\.0\.1:(\$\{LAYA_PORT)', r'"\1', (ROOT / "compose.yaml").read_text())
    file = tmp_path / "compose.yaml"
    file.write_text(text)
    env = {
        "LAYA_ENGINE": "sim",
        "LAYA_ENGINE_NAME": "sim",
        "LAYA_MODEL_NAME": "sim",
        "VALKEY_IMAGE": VALKEY,
        "DOCKER_HOST": engine.url,
    }
    base = [binary, "-f", file, "--project-directory", ROOT, "-p", "laya-test"]

    def compose(*args: str) -> str:
        done = tools.run(*base, *args, timeout=120, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    try:
        compose("up", "-d", "--no-build", "--pull", "never", "router", "node-1", "node-2")
        answered = f"http://{host.address}:8000/v1/models"
        within(60, lambda: '"sim"' in fetch(answered, 3), "the router knows its model")
        nodes = ["exec", "-T", "router", "laya", "nodes", "--json", "--admin", "127.0.0.1:8001"]
        within(30, lambda: sum(n["state"] == "ready" for n in json.loads(compose(*nodes))) == 2, "both nodes are ready")
        page = compose(
            "exec",
            "-T",
            "router",
            "laya",
            "generate",
            "Once",
            "--raw",
            "--max-tokens",
            "4",
            "--address",
            "127.0.0.1:8000",
        )
        assert page.strip()
    finally:
        tools.run(*base, "down", "-v", "-t", "5", timeout=120, env=env)
