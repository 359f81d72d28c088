"""Flow control and content over several nodes: nothing is lost, repeated or unpaid, in whatever order things come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_node.relay.flow import EARLY
from router_node.relay.settings import MigrationSettings
from shared import headers as names
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeClientStream, FakeServerStream
from tests.support.relay_rig import MODEL, Rig

GRANT = (names.JOURNAL, b"1")
HEAD = frame(
    openai_pb2.HttpResponse(
        head=openai_pb2.HttpResponseHead(
            status=200, headers=[openai_pb2.HttpHeader(name="content-type", value="text/event-stream")]
        )
    ).SerializeToString()
)
SIZES = st.sampled_from((0, 1, 20, 300, 5000, 40_000, 90_000, 300_000))
WINDOW = 64 << 10

# What happens next: so many bytes come from the node, the client reads, the node is lost.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 16_384)),
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.just("lose"), st.just(0)),
    ),
    max_size=60,
)


@dataclass
class Node:
    """One node's stream: what it has yet to send, and what it has been told was taken."""

    stream: FakeClientStream
    to_come: bytes
    sent: int = 0

    @property
    def window(self) -> int:
        """Bytes that it may send now."""
        return WINDOW - (self.sent - self.stream.taken)

    def come(self, size: int) -> None:
        piece, self.to_come = self.to_come[:size], self.to_come[size:]
        self.sent += len(piece)
        if piece:
            self.stream.sink.on_response_data(piece, False)


@dataclass
class World:
    """An answer of so many messages over gRPC or HTTP, and the nodes it has been to."""

    http: bool
    sizes: list[int]
    nodes: list[Node] = field(default_factory=list)

    def start(self) -> None:
        settings_ = MigrationSettings(attempts=16, max_prefill_tokens=1 << 30)
        self.rig = Rig(3, migration=settings_, max_attempts=1)
        self.said = [self._message(i) for i in range(len(self.sizes))]
        if self.http:
            body = b'{"model":"smollm2","messages":[],"stream":true,"max_tokens":9}'
            self.exchange = FakeExchange(b"POST", b"/v1/chat/completions", [], body)
            self.rig.gateway.handle(self.exchange)
        else:
            request = pb.GenerateRequest(model=MODEL, text="hi").SerializeToString()
            head = [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", b"/laya.v1.Inference/Generate"),
                (b":authority", b"x"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
            ]
            self.client = FakeServerStream().call(self.rig.front.accept, head, request)
        self.next_node()

    def _message(self, i: int) -> bytes:
        if self.http:
            return frame(openai_pb2.HttpResponse(body=self._text(i), token_ids=[i]).SerializeToString())
        return frame(pb.GenerateResponse(text=self._text(i).decode(), token_ids=[i]).SerializeToString())

    def _text(self, i: int) -> bytes:
        return b"%d" % (i % 10) * self.sizes[i]

    @property
    def whole(self) -> bytes:
        """What the client is to have in the end."""
        return b"".join(map(self._text, range(len(self.sizes))) if self.http else self.said)

    @property
    def got(self) -> bytes:
        return b"".join(self.exchange.parts if self.http else self.client.data)

    def next_node(self) -> bool:
        known = {id(node.stream) for node in self.nodes}
        fresh = [s for up in self.rig.upstreams.values() for s in up.streams if id(s) not in known]
        if not fresh:
            return False
        (stream,) = fresh
        done = 0
        if self.nodes:
            if self.http:
                resume = openai_pb2.HttpRequest.FromString(stream.data[0][5:]).resume
            else:
                resume = pb.GenerateRequest.FromString(stream.data[0][5:]).resume
            done = len(resume.token_ids)
            assert list(resume.token_ids) == list(range(done))
        stream.begin(GRANT)
        rest = b"".join(self.said[done:])
        self.nodes.append(Node(stream, HEAD + rest if self.http else rest))
        return True

    def read(self) -> None:
        if self.http:
            self.exchange.drain()
        else:
            self.client.drain()

    def check(self) -> None:
        assert self.whole.startswith(self.got)
        for node in self.nodes:
            assert 0 <= node.stream.taken <= node.sent

    def finish(self) -> None:
        """All of it comes and is read, and no byte is unpaid."""
        node = self.nodes[-1]
        while node.to_come:
            self.read()
            assert node.window > 0, "a deadlock"
            node.come(min(16_384, node.window))
            self.check()
        self.read()
        assert node.stream.taken == node.sent
        node.stream.finish()
        assert self.got == self.whole
        if self.http:
            assert self.exchange.state == "finished"
        else:
            assert self.client.status()[b"grpc-status"] == b"0"
            self.client.settle()
        for upstream in self.rig.upstreams.values():
            for stream in upstream.streams:
                stream.settle()
        self.rig.assert_idle()
        counts = self.rig.metrics.moves
        assert (counts.journal_bytes, counts.journals) == (0, 0)


@settings(max_examples=60)
@given(st.booleans(), st.lists(SIZES, min_size=1, max_size=8), STEPS)
def test_every_byte_is_passed_on_once_and_acknowledged_to_who_sent_it(
    http: bool, sizes: list[int], steps: list[tuple[str, int]]
) -> None:
    async def run() -> None:
        world = World(http, sizes)
        world.start()
        losses = 0
        for what, size in steps:
            node = world.nodes[-1]
            if what == "come":
                node.come(min(size, node.window))
            elif what == "read":
                world.read()
            elif losses < 10 and _progress(world):
                losses += 1
                node.stream.lose()
                if not world.next_node():
                    return  # everything had come: the router ended it
            world.check()
        world.finish()

    asyncio.run(run())


@pytest.mark.parametrize("http", [False, True])
@pytest.mark.parametrize("size", [300, 20_000, 40_000, 90_000])
def test_a_client_that_reads_nothing_is_fetched_a_message_and_a_window(http: bool, size: int) -> None:
    async def run() -> None:
        world = World(http, [size] * (2_000_000 // size))
        world.start()
        (node,) = world.nodes
        while node.window > 0 and node.to_come:
            node.come(min(16_384, node.window))
        assert node.to_come
        assert node.sent <= WINDOW + EARLY + size + len(HEAD) + 100
        world.finish()  # and all of the rest, once it reads

    asyncio.run(run())


def _progress(world: World) -> bool:
    """The present node has said something new, so that its loss makes nothing poisonous, and all is taken down."""
    node = world.nodes[-1]
    if not world.got or world.rig.metrics.moves.journals != 1:
        return False
    return node.sent > len(HEAD) + 100_000 or node.stream.taken > 0 or len(world.nodes) == 1
