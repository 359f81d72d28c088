"""Many streams whose nodes send at a fixed pace: what a message costs on the way, and how late it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.canned import TAIL, stamps
from loadtest.hop_client import HopClient, quantile
from loadtest.raw_wire import RawStream
from loadtest.rig import cpu_seconds
from shared.net.api import ClientSink, Headers

SETTLE = 0.4  # seconds after the last stream has begun before anything is counted
END_LIMIT = 60.0
_BATCH = 16  # streams begun at once, so that their messages do not all come at the same moment


@dataclass
class Count:
    """What has come since ``delays`` was last set to None or to a new list."""

    messages: int = 0
    delays: list[float] | None = None


class Paced(ClientSink):
    """One stream: takes the time stamps out of its messages."""

    __slots__ = ("_count", "_rest", "done", "status", "stream")

    def __init__(self, count: Count, done: asyncio.Future[None]) -> None:
        self._count = count
        self._rest = b""
        self.done = done
        self.status = b""
        self.stream: RawStream | None = None

    def on_response(self, headers: Headers, end: bool) -> None:
        """A trailers-only answer carries the status here."""
        if end:
            self.on_response_trailers(headers)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Messages, whole or in part."""
        if self.stream is not None:
            self.stream.consumed(len(data))
        have = self._rest + data if self._rest else data
        delays, after = stamps(have)
        self._rest = have[max(after, len(have) - TAIL) :]
        count = self._count
        count.messages += len(delays)
        if count.delays is not None:
            count.delays += delays

    def on_response_trailers(self, headers: Headers) -> None:
        """Keep the status."""
        for name, value in headers:
            if name == b"grpc-status":
                self.status = value

    def on_request_sent(self, n: int) -> None:
        """Requests are small."""

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The stream is over."""
        if not self.done.done():
            self.done.set_result(None)


async def paced(client: HopClient, pids: Sequence[int], streams: int, seconds: float) -> dict[str, float]:
    """Figures of ``seconds`` in the middle of so many streams, which must last long enough (see ``messages``)."""
    loop = asyncio.get_running_loop()
    count = Count()
    sinks = []
    refused = 0
    for i in range(streams):
        sink = Paced(count, loop.create_future())
        sink.stream = client.open_stream(sink)
        if sink.stream is None:
            refused += 1
        else:
            sinks.append(sink)
        if i % _BATCH == _BATCH - 1:
            await asyncio.sleep(0.001)
    await asyncio.sleep(SETTLE)
    delays: list[float] = []
    count.delays = delays
    came, used, began = count.messages, cpu_seconds(pids), loop.time()
    await asyncio.sleep(seconds)
    count.delays = None
    came, used, took = count.messages - came, cpu_seconds(pids) - used, loop.time() - began
    async with asyncio.timeout(END_LIMIT):
        await asyncio.gather(*(s.done for s in sinks))
    return {
        "messages_per_second": came / took,
        "delay_p50_ms": quantile(delays, 0.50) * 1e3,
        "delay_p99_ms": quantile(delays, 0.99) * 1e3,
        "cpu_us_per_message": used / came * 1e6 if came and pids else float("nan"),
        "errors": float(refused + sum(s.status != b"0" for s in sinks)),
    }


def messages(pace: float, seconds: float) -> int:
    """Messages a stream needs so that it is still running when the measurement ends."""
    return int((SETTLE + seconds + 0.6) / pace) + 1
