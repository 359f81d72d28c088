"""Calls at a fixed rate over many connections, and what the router says that routing them took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared import headers as names
from shared.net.api import ClientSink, ClientStream, Headers
from shared.net.flusher import Flusher
from shared.net.grpc_wire import frame
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.pb.laya.v1 import inference_pb2 as pb

CONNECT_LIMIT = 15.0
END_LIMIT = 15.0
SESSIONS = 2000  # conversations that the calls belong to, in turn


@dataclass
class Paced:
    """Seconds of each call: the router's own word on routing, and the whole as the client saw it."""

    routed: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    errors: int = 0
    late: int = 0  # calls that began over 2 ms after their time: the client's own doing


class _Sink(ClientSink):
    __slots__ = ("_began", "_out", "_status", "open", "stream")

    def __init__(self, out: Paced, opened: set[_Sink]) -> None:
        self._out = out
        self._began = time.perf_counter()
        self._status = b""
        self.open = opened
        self.stream: ClientStream | None = None

    def on_response(self, headers: Headers, end: bool) -> None:
        """Keep what the router says."""
        for name, value in headers:
            if name == names.ROUTER_TIME:
                self._out.routed.append(int(value) / 1e6)
        if end:
            self.on_response_trailers(headers)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Bytes are taken at once."""
        if self.stream is not None:
            self.stream.consumed(len(data))

    def on_response_trailers(self, headers: Headers) -> None:
        """Keep the status."""
        self._status = next((value for name, value in headers if name == b"grpc-status"), self._status)

    def on_request_sent(self, n: int) -> None:
        """Nobody waits for this."""

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The call is over."""
        self.open.discard(self)
        if self._status == b"0":
            self._out.whole.append(time.perf_counter() - self._began)
        else:
            self._out.errors += 1


async def paced(
    address: str, model: str, *, connections: int, rate: float, seconds: float, tokens: int, skip: float = 0.5
) -> Paced:
    """Send ``rate`` calls a second in turn over so many connections; those of the first ``skip`` seconds do not count.

    A call begins at its time whether or not those before it have ended.
    """
    settings = NetSettings(max_streams=4096, connection_window=1 << 30, max_connections=1)
    flusher = Flusher()
    pools = [Pool(address, settings, flusher) for _ in range(connections)]
    try:
        await _connect(pools)
        text = "word" * tokens
        request = pb.GenerateRequest(model=model, text=text, sampling=pb.SamplingParams(max_tokens=16))
        body = frame(pb.CompleteRequest(request=request).SerializeToString())
        heads = [_headers(address, model, tokens, number) for number in range(SESSIONS)]
        await _send(pools, heads, body, rate, skip)
        return await _send(pools, heads, body, rate, seconds)
    finally:
        await asyncio.gather(*(pool.close() for pool in pools))


async def _connect(pools: Sequence[Pool]) -> None:
    for pool in pools:
        pool.start()
    deadline = time.monotonic() + CONNECT_LIMIT
    while not all(pool.connected for pool in pools):
        if time.monotonic() > deadline:
            raise TimeoutError("the target does not answer")
        await asyncio.sleep(0.01)


async def _send(pools: Sequence[Pool], heads: Sequence[Headers], body: bytes, rate: float, seconds: float) -> Paced:
    out, opened = Paced(), set[_Sink]()
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        left = due - time.perf_counter()
        if left > 0:
            await asyncio.sleep(left)
        elif left < -0.002:
            out.late += 1
        if left <= 0 and number % 8 == 0:
            await asyncio.sleep(0)
        sink = _Sink(out, opened)
        stream = pools[number % len(pools)].open(heads[number % len(heads)], sink)
        if stream is None:
            out.errors += 1
            continue
        sink.stream = stream
        opened.add(sink)
        stream.send(body, True)
    deadline = time.perf_counter() + END_LIMIT
    while opened and time.perf_counter() < deadline:  # noqa: ASYNC110 - a benchmark's own wait
        await asyncio.sleep(0.01)
    out.errors += len(opened)
    return out


def _headers(address: str, model: str, tokens: int, number: int) -> Headers:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/laya.v1.Inference/Complete"),
        (b":authority", address.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (names.MODEL, model.encode()),
        (names.PROMPT_TOKENS, b"%d" % tokens),
        (names.MAX_TOKENS, b"16"),
        (names.SESSION, b"session-%d" % number),
    ]
