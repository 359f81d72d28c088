"""A node that knows the cluster token and misbehaves: it describes itself and reports well, and answers as told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace

from shared import headers as names
from shared.net.api import Headers, HttpExchange, ServerSink, ServerStream
from shared.net.flusher import Flusher
from shared.net.grpc_wire import frame
from shared.net.listener import Listener
from shared.net.server import H2ServerStream
from shared.net.settings import NetSettings
from shared.pb.laya.v1 import node_pb2
from shared.version import PROTOCOL, __version__

HEALTH_WATCH = b"/grpc.health.v1.Health/Watch"
HEAD: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK: Headers = [(b"grpc-status", b"0")]
CAPACITY = 1 << 20


class RogueNode:
    """``behave`` is called with each call that is not about the node itself, once its request is whole.

    ``reads`` off leaves request bytes unacknowledged; then ``behave`` is never called. ``deaf`` stops it from reading
    the socket of a connection once request bytes come on it, until ``hear_again``. ``hears`` is called with the bytes
    of a request as they come.
    """

    def __init__(
        self,
        node_id: str = "rogue",
        model: str = "m",
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        revision: str = "",
    ) -> None:
        self.node_id = node_id
        self.model = model
        self.revision = revision
        self.behave: Callable[[RogueCall], None] = RogueCall.hang
        self.hears: Callable[[RogueCall, bytes], None] = lambda call, data: None
        self.reads = True
        self.deaf = False
        self.shut: set[asyncio.Transport] = set()  # those whose sockets it does not read
        self.open = 0  # calls that have not ended
        self.seen = 0
        self.poured = 0  # bytes of all streamed answers
        self.reports = 0
        self.odd_report: Callable[[node_pb2.WatchResponse], None] = lambda report: None
        settings = replace(NetSettings(), idle_timeout=0)
        self._listener = Listener(self._accept, self._no_http, settings, Flusher(), host=host, tls=tls)

    async def start(self) -> RogueNode:
        await self._listener.start()
        return self

    async def stop(self) -> None:
        await self._listener.close()

    def hear_again(self) -> None:
        self.deaf = False
        for transport in self.shut:
            transport.resume_reading()
        self.shut.clear()

    @property
    def address(self) -> str:
        return self._listener.address

    def _no_http(self, exchange: HttpExchange) -> None:
        exchange.respond(404, [], b"")

    def _accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        assert isinstance(stream, H2ServerStream)
        if (b":path", HEALTH_WATCH) in headers:  # it has no such service, as a node need not
            stream.respond([*HEAD, (b"grpc-status", b"12")], end=True)
            return None
        return RogueCall(self, stream, dict(headers))

    def describe(self) -> bytes:
        answer = node_pb2.DescribeResponse(
            node_id=self.node_id,
            boot_id="b1",
            version=__version__,
            protocol=PROTOCOL,
            model=node_pb2.ModelSpec(name=self.model, revision=self.revision, max_seq_len=1 << 16, engine="sim"),
            kv_capacity_tokens=CAPACITY,
            kv_block_tokens=16,
            max_num_seqs=4096,
            default_max_tokens=16,
            ready=True,
        )
        return frame(answer.SerializeToString())

    def report(self, sequence: int) -> bytes:
        report = node_pb2.WatchResponse(
            sequence=sequence,
            boot_id="b1",
            kv_capacity_tokens=CAPACITY,
            headroom_tokens=CAPACITY,
            prefill_tokens_per_second=8000,
            decode_tokens_per_second=100,
            full=sequence == 0,
            ready=True,
        )
        self.odd_report(report)
        self.reports += 1
        return frame(report.SerializeToString())


class RogueCall(ServerSink):
    """One call to the node, and the ways in which it may be answered."""

    def __init__(self, node: RogueNode, stream: H2ServerStream, headers: dict[bytes, bytes]) -> None:
        self.node = node
        self.stream = stream
        self.headers = headers
        self.request = b""
        self.pour: bytes | None = None
        self.poured = 0
        self.most = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sequence = 0
        node.open += 1

    @property
    def method(self) -> bytes:
        return self.headers[b":path"].rpartition(b"/")[2]

    def on_data(self, data: bytes, end: bool) -> None:
        node = self.node
        own = self.method in (b"Describe", b"Watch")
        if node.deaf and not own:
            self.stream.conn.transport.pause_reading()
            node.shut.add(self.stream.conn.transport)
        if own or node.reads:
            self.stream.consumed(len(data))
            self.request += data
            if not own:
                node.hears(self, data)
            if end:
                self._answer()

    def on_trailers(self, headers: Headers) -> None:
        self._answer()

    def on_sent(self, n: int) -> None:
        if self.pour is not None:
            self._pour_on()

    def on_closed(self, code: int) -> None:
        self.node.open -= 1
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self) -> None:
        if self.method == b"Describe":
            self.stream.respond(HEAD)
            self.stream.send(self.node.describe())
            self.stream.trailers(OK)
        elif self.method == b"Watch":
            self.stream.respond(HEAD)
            self._watch()
        else:
            assert names.DISPATCH in self.headers or self.method == b"Drain"
            self.node.seen += 1
            self.node.behave(self)

    def _watch(self) -> None:
        self.stream.send(self.node.report(self._sequence))
        self._sequence += 1
        self._timer = asyncio.get_running_loop().call_later(0.2, self._watch)

    # Behaviours.

    def hang(self) -> None:
        """Say nothing."""

    def write_raw(self, data: bytes) -> None:
        """Bytes straight into the connection."""
        self.stream.conn.transport.write(data)

    def drip(self, piece: bytes, every: float) -> None:
        """A streamed answer that goes on with ``piece`` every so many seconds for as long as it is heard."""
        if not self.stream.closed:
            self.stream.send(piece)
            self._timer = asyncio.get_running_loop().call_later(every, self.drip, piece, every)

    def pour_out(self, piece: bytes, most: int, head: Headers = HEAD) -> None:
        """A streamed answer of ``most`` bytes, as fast as it is taken."""
        self.stream.respond(head)
        self.pour, self.most = piece, most
        self._pour_on()

    def _pour_on(self) -> None:
        piece = self.pour
        while piece is not None and self.stream.queued < 64 << 10 and not self.stream.closed:
            if self.poured >= self.most:
                self.pour = piece = None
                self.stream.trailers(OK)
            else:
                self.stream.send(piece)
                self.poured += len(piece)
                self.node.poured += len(piece)
