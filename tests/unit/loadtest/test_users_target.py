"""Whom a load test may ask, and what is said of a target that is down, slow or half up."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loadtest.users.target import Target, TargetError, look, takes_schema, target
from tests.support.ports import free_port


@pytest.mark.parametrize(
    ("host", "address", "tls"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", False),
        ("localhost:9", "localhost:9", False),
        ("http://127.9.9.9", "127.9.9.9:80", False),
        ("https://[::1]", "[::1]:443", True),
    ],
)
def test_loopback_may_be_loaded(host: str, address: str, tls: bool) -> None:
    at = target(host)
    assert (at.address, at.tls) == (address, tls)


@pytest.mark.parametrize("host", ["http://10.0.0.1:8000", "laya.example", "http://127.0.0.1.evil.example", "0.0.0.0:1"])
def test_another_host_must_be_named_twice(host: str) -> None:
    with pytest.raises(TargetError, match="not loopback; pass --i-own-this-host") as e:
        target(host)
    name = str(e.value).partition(":")[0]
    assert target(host, {name}).host == name


@pytest.mark.parametrize("host", ["", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port"])
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(TargetError, match="no address|no host"):
        target(host)


@contextmanager
def serving(answer: Callable[[str, bytes], tuple[int, object]]) -> Iterator[Target]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, said = answer(self.path, body)
            raw = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Target("127.0.0.1", server.server_port, False)
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


def models(*cards: dict[str, object]) -> Callable[[str, bytes], tuple[int, object]]:
    return lambda path, body: (200, {"data": list(cards)})


A = {"id": "a", "root": "a", "max_model_len": 2048}


def test_the_only_model_is_taken_and_another_by_name() -> None:
    with serving(models(A, {"id": "alias", "root": "a", "max_model_len": 2048})) as at:
        assert (look(at).model, look(at).context) == ("a", 2048)
        assert look(at, "alias").model == "alias"
        with pytest.raises(TargetError, match="there is no model 'b'; there is a, alias"):
            look(at, "b")
    with (
        serving(models(A, {"id": "b", "root": "b"})) as at,
        pytest.raises(TargetError, match="serves a, b; pick one with --model"),
    ):
        look(at)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, {"data": []}, "serves no model yet; no node is ready"),
        (200, b"<html>", "no list of models"),
        (401, {"error": {"message": "no key"}}, "answers 401 to /v1/models: no key"),
        (503, b"", "answers 503"),
    ],
)
def test_a_target_that_is_half_up_is_described(status: int, body: object, said: str) -> None:
    with serving(lambda *_: (status, body)) as at, pytest.raises(TargetError, match=said):
        look(at)


def test_a_target_that_is_down_or_hangs_is_told_apart() -> None:
    with pytest.raises(TargetError, match=r"cannot be reached .*start it first"):
        look(Target("127.0.0.1", free_port(), False))
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TargetError, match="says nothing within"):
        look(Target("127.0.0.1", silent.getsockname()[1], False), limit=0.2)


def test_an_engine_is_asked_whether_it_takes_a_schema() -> None:
    def strict(path: str, body: bytes) -> tuple[int, object]:
        return (200 if json.loads(body)["response_format"]["type"] == "json_schema" else 500), {}

    with serving(strict) as at:
        assert takes_schema(at, "a")
    with serving(lambda *_: (400, {})) as at:
        assert not takes_schema(at, "a")
