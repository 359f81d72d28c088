"""Locust users for Laya: ``GrpcUser`` (typed streams) and ``HttpUser`` (OpenAI chat over SSE).

    locust -f loadtest/locustfile.py --headless -u 8 -r 8 -t 20s --host http://127.0.0.1:8000
    locust -f loadtest/locustfile.py --headless -u 8 -r 8 -t 20s --host http://127.0.0.1:8000 GrpcUser

Each answer gives three rows: the whole call, its ``ttft`` (time to first token) and ``itl`` (mean time between its
tokens); failures are grouped by reason. Times are milliseconds, as locust has them. Set LAYA_API_KEY, LAYA_MODEL,
LAYA_MAX_TOKENS and LAYA_PROMPT_WORDS to change what is asked. Load stays on loopback unless LAYA_I_OWN_THIS_HOST names
the host.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any
from urllib.parse import urlsplit

import grpc.experimental.gevent as grpc_gevent  # type: ignore[import-not-found]
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError
from locust import User, between, events, task
from locust.env import Environment

# grpcio's core must know of gevent before the first channel is made.
grpc_gevent.init_gevent()

import grpc  # noqa: E402

from shared.pb.laya.v1 import inference_pb2 as pb  # noqa: E402
from shared.pb.laya.v1 import inference_pb2_grpc as rpc  # noqa: E402

MODEL = os.environ.get("LAYA_MODEL", "")
KEY = os.environ.get("LAYA_API_KEY", "")
MAX_TOKENS = int(os.environ.get("LAYA_MAX_TOKENS", "32"))
PROMPT_WORDS = int(os.environ.get("LAYA_PROMPT_WORDS", "60"))
_WORDS = ("router", "cache", "token", "stream", "prefix", "memory", "layer", "batch", "queue", "weight")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _refuse_foreign_hosts(environment: Environment, **_: object) -> None:
    """Load that reaches a host by mistake is an attack: a host beyond loopback must be named twice."""
    host = urlsplit(environment.host or "").hostname or ""
    if host not in _LOOPBACK and os.environ.get("LAYA_I_OWN_THIS_HOST") != host:
        raise SystemExit(f"{host or 'no host'}: not loopback; set LAYA_I_OWN_THIS_HOST={host} if it is yours to load")


def _prompt(rng: random.Random) -> str:
    return "Write about " + " ".join(rng.choice(_WORDS) for _ in range(PROMPT_WORDS))


class _Clock:
    """Times of one streamed answer, turned into locust's rows."""

    def __init__(self, environment: Environment, kind: str, name: str) -> None:
        self._fire = environment.events.request.fire
        self._kind = kind
        self._name = name
        self._began = time.perf_counter()
        self._first = 0.0
        self._last = 0.0
        self._tokens = 0
        self._bytes = 0

    def token(self, size: int) -> None:
        """One piece of the answer has come."""
        self._last = time.perf_counter()
        self._first = self._first or self._last
        self._tokens += 1
        self._bytes += size

    def done(self, error: Exception | None = None) -> None:
        """The answer is complete, or failed."""
        total = (time.perf_counter() - self._began) * 1e3
        self._row(self._name, total, self._bytes, error)
        if self._first:
            self._row(f"{self._name} ttft", (self._first - self._began) * 1e3, 0)
        if self._tokens > 1:
            self._row(f"{self._name} itl", (self._last - self._first) * 1e3 / (self._tokens - 1), 0)

    def _row(self, name: str, ms: float, size: int, error: Exception | None = None) -> None:
        self._fire(  # type: ignore[no-untyped-call]
            request_type=self._kind, name=name, response_time=ms, response_length=size, exception=error, context={}
        )


class Refused(Exception):
    """A request that failed; locust groups failures by this text."""


class GrpcUser(User):
    """Streams completions over gRPC, one channel per user."""

    wait_time = between(0.0, 0.1)

    def on_start(self) -> None:
        """Open this user's own connection."""
        address = urlsplit(self.host or "http://127.0.0.1:8000").netloc
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = rpc.InferenceStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = [("authorization", f"Bearer {KEY}")] if KEY else []
        self._rng = random.Random(id(self))

    def on_stop(self) -> None:
        """Close it."""
        self._channel.close()

    @task
    def generate(self) -> None:
        """One streamed completion."""
        clock = _Clock(self.environment, "grpc", "Generate")
        request = pb.GenerateRequest(
            model=MODEL, text=_prompt(self._rng), sampling=pb.SamplingParams(max_tokens=MAX_TOKENS)
        )
        try:
            for message in self._stub.Generate(request, timeout=120, metadata=self._metadata):
                clock.token(len(message.text))
        except grpc.RpcError as e:
            clock.done(Refused(f"{e.code().name}"))
            return
        clock.done()


class HttpUser(User):
    """Streams chat answers over the OpenAI API, one kept-alive connection per user."""

    wait_time = between(0.0, 0.1)

    def on_start(self) -> None:
        """Learn the model's name once."""
        self._rng = random.Random(id(self))
        self._client = HTTPClient.from_url(
            self.host or "http://127.0.0.1:8000", concurrency=1, connection_timeout=10, network_timeout=120
        )
        self._headers = {"content-type": "application/json"}
        if KEY:
            self._headers["authorization"] = f"Bearer {KEY}"
        self._model = MODEL
        if not self._model:
            listed = json.loads(self._client.get("/v1/models", self._headers).read() or b"{}").get("data")
            self._model = listed[0]["id"] if listed else ""

    def on_stop(self) -> None:
        """Hang up."""
        self._client.close()

    @task
    def chat(self) -> None:
        """One streamed chat turn."""
        body = {
            "model": self._model,
            "stream": True,
            "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": _prompt(self._rng)}],
        }
        clock = _Clock(self.environment, "http", "chat")
        try:
            answer = self._client.post("/v1/chat/completions", body=json.dumps(body).encode(), headers=self._headers)
            with answer:
                clock.done(_read_events(answer, clock))
        except (OSError, HTTPParseError) as e:
            clock.done(Refused(type(e).__name__))


def _read_events(answer: Any, clock: _Clock) -> Refused | None:
    """Take an SSE answer's events, each as soon as it has come; what was wrong with it, if anything."""
    if answer.status_code != 200:
        return Refused(f"HTTP {answer.status_code}")
    ended = False
    while line := answer.readline(b"\n"):
        if line.startswith(b"data: [DONE]"):
            ended = True
        elif line.startswith(b"data:"):
            clock.token(len(line))
    return None if ended else Refused("stream without [DONE]")
