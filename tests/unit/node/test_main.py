"""``laya-node`` as a process: ready lines, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from inference_node import main
from tests.support.processes import Proc


def node(*args: str, env: dict[str, str] | None = None) -> Proc:
    return Proc("node", ["inference_node.main", "--engine", "sim", "--port", "0", "--model", "demo", *args], env)


def run(*args: str, config: str | None = None, tmp_path=None) -> tuple[int, str]:
    argv = [sys.executable, "-m", "inference_node.main", *args]
    if config is not None:
        path = tmp_path / "laya.yaml"
        path.write_text(config)
        argv += ["--config", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_it_says_when_it_listens_and_when_it_is_ready_and_ends_well():
    proc = node("--node-id", "n7")
    try:
        ready = proc.ready
        assert proc.events[0]["event"] == "listening" and proc.events[0]["address"] == ready["address"]
        assert (ready["node_id"], ready["model"], ready["engine"]) == ("n7", "demo", "sim")
        assert ready["pid"] == proc.popen.pid
    finally:
        assert proc.stop() == 0
    assert "node_stopped" in proc.output()


def test_the_collector_leaves_alone_what_is_there_once_it_serves():
    code = """
import atexit, gc, sys
from inference_node.main import main
atexit.register(lambda: print("left alone:", gc.get_freeze_count(), file=sys.stderr))
main(["--engine", "sim", "--port", "0", "--model", "demo", "--ready-fd", "1"])
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline())["event"] for _ in range(2)]
        process.terminate()
        _, said = process.communicate(timeout=20)
    assert (events, process.returncode) == (["listening", "ready"], 0)
    assert int(said.partition("left alone: ")[2].split()[0]) > 10_000


def test_sigterm_lets_what_runs_finish_and_takes_nothing_new():
    proc = node(env={"LAYA_INFERENCE__SIM__DECODE_BASE_MS": "30"})
    try:
        address = proc.address
        answers: list[bytes] = []
        body = {"model": "demo", "prompt": "x", "max_tokens": 40, "ignore_eos": True}

        def ask() -> None:
            request = urllib.request.Request(
                f"http://{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                answers.append(answer.read())

        thread = threading.Thread(target=ask)
        thread.start()
        deadline = time.monotonic() + 10
        while "laya_node_running_requests 1.0" not in _page(address, "/metrics"):
            assert time.monotonic() < deadline
        proc.signal(signal.SIGTERM)
        while _status(address, "/readyz") != 503:
            assert time.monotonic() < deadline
        assert _status(address, "/v1/completions", json.dumps(body).encode()) == 503
        thread.join(20)
        assert json.loads(answers[0])["usage"]["completion_tokens"] == 40
        assert proc.popen.wait(10) == 0
    finally:
        proc.stop()


def test_a_second_signal_does_not_wait():
    proc = node(env={"LAYA_INFERENCE__SIM__DECODE_BASE_MS": "100"})
    try:
        address = proc.address
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as sock:
            body = b'{"model":"demo","prompt":"x","max_tokens":10000,"ignore_eos":true,"stream":true}'
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            assert sock.recv(100)
            proc.signal(signal.SIGTERM)
            deadline = time.monotonic() + 10
            while _status(address, "/readyz") != 503:
                assert time.monotonic() < deadline
            proc.signal(signal.SIGTERM)
            assert proc.popen.wait(10) == 0
    finally:
        proc.stop()


def _page(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def _status(address: str, path: str, body: bytes | None = None) -> int:
    request = urllib.request.Request(f"http://{address}{path}", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


@pytest.mark.parametrize(
    ("args", "config", "code", "words"),
    [
        (["--engine", "nano-vllm", "--model", "m"], None, main.NO_ENGINE, "not installed"),
        (["--engine", "auto"], None, main.BAD_CONFIG, "inference.model"),
        (["--engine", "sim", "--max-seq-len", "200000"], None, main.BAD_CONFIG, "200000 is more than the 131072"),
        (["--engine", "sim", "--host", "0.0.0.0"], None, main.BAD_CONFIG, "server.cluster_token"),
        (["--engine", "sim", "--node-id", "a b"], None, main.BAD_CONFIG, "inference.node_id"),
        (["--engine", "sim"], "inference: {portt: 1}", main.BAD_CONFIG, "did you mean 'port'"),
        (["--engine", "sim"], "server: {redis: 'redis://x'}\ninference: {advertise: nowhere}", 2, "address"),
        (["--no-such-flag"], None, main.BAD_CONFIG, "--no-such-flag"),
    ],
)
def test_exit_codes_and_one_clear_sentence(args, config, code, words, tmp_path):
    got, said = run(*args, config=config, tmp_path=tmp_path)
    assert got == code and words in said
    assert "Traceback" not in said


def test_a_taken_port_is_exit_4():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = run("--engine", "sim", "--port", str(taken.getsockname()[1]))
    assert code == main.NO_PORT and "in use" in said and "Traceback" not in said


def test_old_and_exposed_settings_are_warned_about(tmp_path):
    path = tmp_path / "laya.yaml"
    path.write_text("server: {insecure: true}\ninference: {host: 0.0.0.0, swap_space: 1}\n")
    proc = node("--config", str(path))
    try:
        assert proc.ready
        assert "swap_space has no effect" in proc.output() and "open to everybody" in proc.output()
    finally:
        assert proc.stop() == 0


def test_a_light_start():
    proc = node()
    try:
        assert proc.ready
        with open(f"/proc/{proc.popen.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        assert seconds < 1.0, "half a second on a free core; twice that where others use it too"
    finally:
        proc.stop()
