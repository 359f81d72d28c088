"""What a relayed call costs the router's process beside the kernel: ``python -m loadtest.bench_relay [--threads N]``.

A load client's engine, the router's own front, dispatcher and both of its connections, and a canned node's engine
talk in memory, so nothing is counted but the router's code and the engine's, and nothing waits. Prints microseconds a
call by part: the requests' way in, the answers' way back.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from typing import Any, cast

import uvloop
from ngh2 import Configuration, Connection, DataReceived, RequestReceived, Role, Setting, StreamClosed

from loadtest.hop_client import HopClient
from loadtest.rig import MODEL
from router_node.admin.counters import RouterMetrics
from router_node.dispatch import Dispatcher, DispatchSettings, NodeSpec, Report
from router_node.middleware.keys import Authorizer
from router_node.relay.core import RelayCore
from router_node.relay.expiry import Expiry
from router_node.relay.front import RelayFront
from router_node.relay.settings import RelaySettings
from router_node.routes.table import RouteTable
from shared.net import turns
from shared.net.api import ClientSink, ClientStream, Headers
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.flusher import Flusher
from shared.net.fork import Fork
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings

_ANSWER = b"\0\0\0\0\xc8" + b"y" * 200
_HEAD: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_OK: Headers = [(b"grpc-status", b"0")]
_ROUNDS = 5
_RAW = Configuration(peer_max_concurrent_streams=4096, stream_reset_rate_limit=(10**9, 10**9))


class Memory:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.writes = 0

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.writes += 1
        self.out.append(data)

    def take(self) -> bytes:
        """All that was written."""
        out = b"".join(self.out)
        self.out.clear()
        return out

    def set_write_buffer_limits(self, high: int) -> None:
        """Never full."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Nothing is known of the peer."""
        return default

    def is_closing(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """At the end of the process."""

    abort = pause_reading = resume_reading = close


class Node(ClientOwner):
    """A pool of one connection, and the canned node behind it."""

    def __init__(self, settings: NetSettings, flusher: Flusher) -> None:
        self.link = H2ClientProtocol(self, settings, flusher)
        self.wire = Memory()
        self.link.connection_made(cast(asyncio.BaseTransport, self.wire))
        self.engine = Connection(Role.SERVER, _RAW)
        self.engine.initiate_connection({Setting.MAX_CONCURRENT_STREAMS: 4096, Setting.INITIAL_WINDOW_SIZE: 1 << 20})
        self.engine.set_local_window_size(1 << 30)
        self.reply = _ANSWER

    def on_ready(self, conn: H2ClientProtocol) -> None:
        """Nothing waits for it."""

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        """Never."""

    def on_gone(self, conn: H2ClientProtocol) -> None:
        """Never."""

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        """As a pool does."""
        return self.link.open(headers, sink, end)

    def answer(self) -> bytes:
        """What the node says to what it has been sent."""
        engine = self.engine
        data = self.wire.take()
        if data:
            engine.receive_data(data)
        for event in engine.events():
            if isinstance(event, RequestReceived | DataReceived) and event.end_stream:
                engine.send_response(event.stream_id, _HEAD)
                engine.send_data(event.stream_id, self.reply)
                engine.send_trailers(event.stream_id, _OK)
        return engine.data_to_send()


class Bench:
    """All of it; ``round`` makes calls."""

    def __init__(self, metadata: bool) -> None:
        loop = asyncio.get_running_loop()
        expiry = Expiry(loop)
        dispatcher = Dispatcher("w0", DispatchSettings(), loop.time, rng=random.Random(1), wake=expiry.wake)
        expiry.bind(dispatcher)
        self.core = core = RelayCore(
            dispatcher=dispatcher,
            authorizer=Authorizer(None),
            table=RouteTable(dispatcher),
            metrics=RouterMetrics(),
            access_log=None,
            settings=RelaySettings(),
            loop=loop,
        )
        self.flusher = flusher = Flusher(loop)
        self.settings = settings = NetSettings()
        self.node = Node(settings, flusher)
        node = dispatcher.add_node("n0", "127.0.0.1:1", NodeSpec(MODEL, max_seq_len=65536, kv_capacity_tokens=1 << 30))
        node.upstream = self.node
        dispatcher.set_link("n0", True)
        dispatcher.on_watch_reset("n0")
        report = Report(1, "boot", kv_capacity_tokens=1 << 30, headroom_tokens=1 << 30, full=True)
        report.prefill_tokens_per_second = 1e6
        dispatcher.on_report("n0", report)
        front = RelayFront(core)
        self.server = H2ServerProtocol(Fork(front.accept, _no_http).accept, settings, flusher)
        self.wire = Memory()
        self.server.connection_made(cast(asyncio.BaseTransport, self.wire))
        self.client = Connection(Role.CLIENT, _RAW)
        self.client.initiate_connection({Setting.INITIAL_WINDOW_SIZE: 1 << 20})
        self.client.set_local_window_size(1 << 30)
        self._ask = HopClient("127.0.0.1:1", MODEL, metadata=metadata)
        self.node.link.data_received(self.node.answer())
        self.there = self.back = 0.0

    def round(self, calls: int, in_flight: int) -> None:
        """So many calls, in lock-step."""
        clock, client, server, node = time.perf_counter, self.client, self.server, self.node
        headers, body = self._ask.unary
        done = 0
        while done < calls:
            for _ in range(in_flight):
                stream_id = client.send_request(headers)
                client.send_data(stream_id, body, end_stream=True)
            data = client.data_to_send()
            began = clock()
            server.data_received(data)
            self.there += clock() - began
            data = node.answer()
            began = clock()
            node.link.data_received(data)
            self.back += clock() - began
            client.receive_data(self.wire.take())
            ended = sum(type(event) is StreamClosed and not event.error_code for event in client.events())
            if ended != in_flight:
                raise SystemExit(f"{ended} of {in_flight} calls were answered")
            done += ended


def _no_http(*_: Any) -> None:
    raise AssertionError("this is gRPC")


async def _measure(calls: int, in_flight: int, metadata: bool) -> None:
    turns.TURN = 3600.0  # the loop does not run meanwhile
    bench = Bench(metadata)
    bench.round(max(500, calls // 10), in_flight)
    parts: list[tuple[float, float]] = []
    for _ in range(_ROUNDS):
        bench.there = bench.back = 0.0
        bench.round(calls, in_flight)
        parts.append((bench.there / calls * 1e6, bench.back / calls * 1e6))
    there, back = (statistics.median(part) for part in zip(*parts, strict=True))
    print(f"{in_flight} in flight: {there + back:.1f} us a call ({there:.1f} there, {back:.1f} back)")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=6400, help="in each of five rounds")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 8, 64], help="calls in flight")
    parser.add_argument("--no-metadata", action="store_true", help="the router reads each message")
    args = parser.parse_args()
    for in_flight in args.threads:
        uvloop.run(_measure(args.calls, in_flight, not args.no_metadata))


if __name__ == "__main__":
    main()
