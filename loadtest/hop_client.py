"""A gRPC client at the speed of the network layer: closed loops of unary calls or streams over one connection."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.net.api import ClientSink, ClientStream, Headers
from shared.net.flusher import Flusher
from shared.net.grpc_wire import frame
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.pb.laya.v1 import inference_pb2 as pb

CONNECT_LIMIT = 10.0
ROUND_LIMIT = 120.0
_PROMPT = "Summarise the state of the router in one sentence for the engineer on call. " * 3


@dataclass(slots=True)
class Sample:
    """Latencies of one round in seconds, its length, and the messages that came."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    messages: int = 0
    errors: int = 0

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile of unsorted values, nan when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else float("nan")


class _Call(ClientSink):
    """One call: counts messages and wakes the loop that made it."""

    __slots__ = ("done", "messages", "size", "status", "stream")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.messages = 0
        self.size = 0
        self.status = b""
        self.stream: ClientStream | None = None

    def on_response(self, headers: Headers, end: bool) -> None:
        """A trailers-only answer carries the status here."""
        if end:
            self.on_response_trailers(headers)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Bytes are taken at once."""
        self.size += len(data)
        if self.stream is not None:
            self.stream.consumed(len(data))

    def on_response_trailers(self, headers: Headers) -> None:
        """Keep the status."""
        for name, value in headers:
            if name == b"grpc-status":
                self.status = value

    def on_request_sent(self, n: int) -> None:
        """Requests are small."""

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The call is over."""
        if not self.done.done():
            self.done.set_result(None)


class HopClient:
    """One connection to ``address``, ready to be loaded."""

    def __init__(
        self,
        address: str,
        model: str,
        *,
        metadata: bool = True,
        flusher: Flusher | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        settings = NetSettings(max_streams=4096, connection_window=1 << 30, max_connections=1)
        self._pool = Pool(address, settings, flusher or Flusher(), tls=tls)
        request = pb.GenerateRequest(model=model, text=_PROMPT, sampling=pb.SamplingParams(max_tokens=64))
        self._unary = frame(pb.CompleteRequest(request=request).SerializeToString())
        self._stream = frame(request.SerializeToString())
        self._headers: Headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b""),
            (b":authority", address.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        if metadata:
            tokens = b"%d" % (len(_PROMPT) // 4)
            self._headers += [
                (b"laya-model", model.encode()),
                (b"laya-prompt-tokens", tokens),
                (b"laya-max-tokens", b"64"),
            ]

    async def connect(self) -> None:
        """Dial; TimeoutError when nothing answers."""
        self._pool.start()
        deadline = time.monotonic() + CONNECT_LIMIT
        while not self._pool.connected:
            if time.monotonic() > deadline:
                raise TimeoutError("the target does not answer")
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Hang up."""
        await self._pool.close()

    async def call(self, stream: bool, sample: Sample) -> None:
        """One call, its latency and size added to the sample."""
        headers = list(self._headers)
        name = b"Generate" if stream else b"Complete"
        headers[2] = (b":path", b"/laya.v1.Inference/" + name)
        call = _Call(asyncio.get_running_loop().create_future())
        began = time.perf_counter()
        call.stream = self._pool.open(headers, call)
        if call.stream is None:
            sample.errors += 1
            await asyncio.sleep(0.01)
            return
        call.stream.send(self._stream if stream else self._unary, end=True)
        await call.done
        if call.status == b"0":
            sample.latencies.append(time.perf_counter() - began)
            sample.messages += call.size
        else:
            sample.errors += 1

    async def load(self, calls: int, in_flight: int, *, stream: bool = False, seconds: float = float("inf")) -> Sample:
        """``calls`` calls, ``in_flight`` at a time, in a closed loop; none is begun after ``seconds``."""
        sample = Sample()
        left = calls
        began = time.perf_counter()
        until = began + seconds

        async def work() -> None:
            nonlocal left
            while left > 0 and time.perf_counter() < until:
                left -= 1
                await self.call(stream, sample)

        # One deadline for the round: a timer for each call would cost as much as the call.
        async with asyncio.timeout(ROUND_LIMIT):
            await asyncio.gather(*(work() for _ in range(in_flight)))
        sample.seconds = time.perf_counter() - began
        return sample

    def open_stream(self, sink: ClientSink) -> ClientStream | None:
        """Begin a streamed call whose messages go to ``sink``; None when the connection takes no stream now."""
        headers = list(self._headers)
        headers[2] = (b":path", b"/laya.v1.Inference/Generate")
        opened = self._pool.open(headers, sink)
        if opened is not None:
            opened.send(self._stream, end=True)
        return opened
