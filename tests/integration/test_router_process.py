"""The router as a process: its ready line, its exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from shared.pb.laya.v1 import inference_pb2, inference_pb2_grpc
from tests.support.certs import Authority
from tests.support.processes import ROOT, Proc

pytestmark = pytest.mark.integration


def run(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a router that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "router_node.main", *argv],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=30,
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr, without a traceback."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("laya-router: "), done.stderr
    return lines[0]


def start(*argv: str, env: dict[str, str] | None = None) -> Proc:
    return Proc("router", ["router_node.main", "--port", "0", "--admin-port", "0", *argv], env)


def test_the_ready_line_says_where_it_serves() -> None:
    router = start()
    try:
        ready = router.ready
        assert ready["event"] == "ready" and ready["pid"] == router.popen.pid
        for address in (ready["address"], ready["admin"]):
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), 5):
                pass
    finally:
        assert router.stop() == 0


def test_it_is_ready_in_a_second_and_costs_half_of_one() -> None:
    began = time.monotonic()
    router = start()
    try:
        assert router.ready
        took = time.monotonic() - began
        with open(f"/proc/{router.popen.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    finally:
        router.stop()
    # Generous for a busy machine; alone it is a third of this.
    assert spent < 1.0 and took < 5.0


@pytest.mark.parametrize(
    "argv, env, said",
    [
        (["--host", "0.0.0.0"], {}, "server.host"),
        (["--config", "/nowhere/laya.yaml"], {}, "/nowhere/laya.yaml"),
        (["--keys-file", "/nowhere/keys.json"], {}, "laya keys add"),
        (["--node", "nowhere"], {}, "router.nodes[0]"),
        (["--redis", "http://x"], {}, "server.redis"),
        (["--workers", "0"], {}, "router.workers"),
        ([], {"LAYA_ROUTER__TIMEOUT_MS": "soon"}, "router.timeout_ms"),
        ([], {"LAYA_SERVER__TLS__CERT_FILE": "/nowhere/cert.pem"}, "server.tls"),
        ([], {"LAYA_ROUTER__FORWARD_METADATA": "[authorization]"}, "router.forward_metadata"),
    ],
)
def test_a_bad_configuration_ends_with_two_and_one_sentence(
    argv: Sequence[str], env: dict[str, str], said: str
) -> None:
    done = run("--port", "0", "--admin-port", "0", *argv, env=env)
    assert done.returncode == 2, done.stderr
    assert said in sentence(done)


@pytest.mark.parametrize("flag, key", [("--port", "server.port"), ("--admin-port", "router.admin_port")])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_port_ends_with_four_and_names_it(flag: str, key: str, workers: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        other = "--admin-port" if flag == "--port" else "--port"
        done = run(flag, port, other, "0", "--workers", workers)
    assert done.returncode == 4, done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert key in said and port in said and "Traceback" not in done.stderr


def test_it_leaves_no_socket_behind(tmp_path: Path) -> None:
    router = start(env={"TMPDIR": str(tmp_path)})
    try:
        assert router.ready
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        assert router.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_long_temporary_folder_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    router = start(env={"TMPDIR": str(deep)})
    try:
        assert router.ready
    finally:
        assert router.stop() == 0


def test_an_open_router_says_so_in_its_log() -> None:
    router = start("--host", "0.0.0.0", "--insecure")
    try:
        assert router.ready
        assert "exposed" in router.output() and "API keys" in router.output()
    finally:
        router.stop()


def test_secrets_are_in_no_output() -> None:
    env = {"LAYA_SERVER__CLUSTER_TOKEN": "t0psecret-token", "LAYA_SERVER__LOG_LEVEL": "debug"}
    router = start("--redis", "redis://:hunter2@127.0.0.1:1/0", env=env)
    try:
        assert router.ready
    finally:
        router.stop()
    assert "t0psecret" not in router.output() and "hunter2" not in router.output()
    assert "127.0.0.1:1" in router.output()


def test_logs_are_json_where_they_should_be() -> None:
    router = start("--log-format", "json")
    try:
        assert router.ready
    finally:
        router.stop()
    events = [json.loads(line)["event"] for line in router.output().splitlines()]
    assert events[0] == "router_ready" and events[-1] == "router_stopped"


def test_the_public_port_speaks_tls_where_it_should(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("router")
    env = {"LAYA_SERVER__TLS__CERT_FILE": pair.cert, "LAYA_SERVER__TLS__KEY_FILE": pair.key}
    router = start(env=env)
    try:
        credentials = grpc.ssl_channel_credentials(Path(authority.file).read_bytes())
        with grpc.secure_channel(router.address, credentials) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
            assert list(stub.ListModels(inference_pb2.ListModelsRequest(), timeout=10).models) == []
        with urllib.request.urlopen(f"http://{router.ready['admin']}/healthz", timeout=5) as answer:
            assert answer.status == 200  # the private listener stays in clear, on loopback
    finally:
        assert router.stop() == 0
