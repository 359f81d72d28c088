"""The image of the load test: it is built, says what it is, and loads a router with both kinds of users."""

from __future__ import annotations

import json

import pytest

from tests.support.docker import Engine
from tests.support.images import build
from tests.support.processes import Spec, cluster

pytestmark = pytest.mark.timeout(600)  # the first test pays for the image

LOAD = "laya/loadtest:0.1.0"
HARD = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


@pytest.fixture(scope="module")
def load(engine: Engine) -> Engine:
    """The engine with the image."""
    build(engine, "loadtest/Dockerfile", LOAD)
    return engine


def test_the_load_image_says_what_it_is_and_runs_as_nobody(load: Engine) -> None:
    config = json.loads(load.run("inspect", LOAD))[0]["Config"]
    assert config["User"] == "10001:10001"
    assert config["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "locust"]


def test_the_load_image_loads_a_router_and_prints_its_figures(load: Engine) -> None:
    asked = ("--headless", "-u", "4", "-r", "4", "-t", "3s", "--think-s", "0.02", "--max-tokens", "4", "--json")
    with cluster(Spec(nodes=1)) as running:
        host = ("--host", f"http://{running.address}")
        done = load.try_(["run", "--rm", "--network", "host", *HARD, LOAD, *asked, *host, "--scenarios", "chat"], 60)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["method"], row["name"]): row for row in json.loads(done.stdout)}
    for kind in ("grpc", "http"):
        assert rows[kind, "chat"]["num_requests"] > 0 and rows[kind, "chat"]["num_failures"] == 0
        assert rows[kind, "chat ttft"]["num_requests"] > 0


def test_the_load_image_refuses_a_host_that_was_not_claimed(load: Engine) -> None:
    asked = ("--headless", "-u", "1", "-t", "1s", "--host", "http://192.0.2.1:80")
    done = load.try_(["run", "--rm", "--network", "none", *HARD, LOAD, *asked])
    assert done.returncode == 2 and "192.0.2.1: not loopback" in done.stderr, done.stderr


def test_the_load_image_has_the_other_tools_of_the_load_test(load: Engine) -> None:
    script = (
        "cd /tmp && python /opt/loadtest/loadtest/make_trace.py mooncake --requests 3 --out t.jsonl && wc -l < t.jsonl"
        " && python /opt/loadtest/loadtest/replay.py --help | head -1"
    )
    said = load.run("run", "--rm", "--network", "none", *HARD, "--entrypoint", "sh", LOAD, "-c", script)
    assert said.splitlines()[-2] == "3" and said.splitlines()[-1].startswith("usage: replay.py")
