"""A gRPC client at the speed of the HTTP/2 engine: closed loops of unary calls or streams over one connection."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.raw_wire import ClientConnection, RawStream
from shared.net.api import ClientSink, Headers
from shared.net.grpc_wire import frame
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
    """One streamed call: counts its bytes and wakes the loop that made it."""

    __slots__ = ("done", "size", "status")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.size = 0
        self.status = b""

    def on_response(self, headers: Headers, end: bool) -> None:
        """A trailers-only answer carries the status here."""
        if end:
            self.on_response_trailers(headers)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Bytes are taken at once."""
        self.size += len(data)

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

    def __init__(self, address: str, model: str, *, metadata: bool = True, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._conn: ClientConnection | None = None
        request = pb.GenerateRequest(model=model, text=_PROMPT, sampling=pb.SamplingParams(max_tokens=64))
        self._unary = frame(pb.CompleteRequest(request=request).SerializeToString())
        self._stream = frame(request.SerializeToString())
        common: Headers = [
            (b":scheme", b"https" if tls else b"http"),
            (b":authority", address.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        if metadata:
            tokens = b"%d" % (len(_PROMPT) // 4)
            common += [
                (b"laya-model", model.encode()),
                (b"laya-prompt-tokens", tokens),
                (b"laya-max-tokens", b"64"),
            ]
        first = (b":method", b"POST")
        self._to_complete: Headers = [first, (b":path", b"/laya.v1.Inference/Complete"), *common]
        self._to_generate: Headers = [first, (b":path", b"/laya.v1.Inference/Generate"), *common]

    async def connect(self) -> None:
        """Dial; TimeoutError when nothing answers."""
        loop = asyncio.get_running_loop()
        host, _, port = self._address.rpartition(":")
        deadline = time.monotonic() + CONNECT_LIMIT
        while True:
            try:
                async with asyncio.timeout(CONNECT_LIMIT):
                    _, self._conn = await loop.create_connection(ClientConnection, host, int(port), ssl=self._tls)
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError("the target does not answer") from error
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Hang up."""
        if self._conn is not None:
            self._conn.close()

    async def call(self, stream: bool, sample: Sample) -> None:
        """One call, its latency and size added to the sample."""
        began = time.perf_counter()
        if not stream:
            answer = self._conn.ask(self._to_complete, self._unary) if self._conn is not None else None
            if answer is not None and await answer:
                sample.latencies.append(time.perf_counter() - began)
            else:
                sample.errors += 1
                await asyncio.sleep(0.01)
            return
        call = _Call(asyncio.get_running_loop().create_future())
        if self.open_stream(call) is None:
            sample.errors += 1
            await asyncio.sleep(0.01)
            return
        await call.done
        if call.status == b"0":
            sample.latencies.append(time.perf_counter() - began)
            sample.messages += call.size
        else:
            sample.errors += 1

    @property
    def unary(self) -> tuple[Headers, bytes]:
        """A unary request: its headers, and its framed message."""
        return self._to_complete, self._unary

    def open_stream(self, sink: ClientSink) -> RawStream | None:
        """Begin a streamed call whose messages go to ``sink``; None when the connection takes no stream now."""
        return None if self._conn is None else self._conn.open(self._to_generate, self._stream, sink)

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
