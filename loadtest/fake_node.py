"""A canned node at the speed of the HTTP/2 engine, to measure a router alone.

It registers, describes itself and reports like a real node, and counts each dispatch; it does no work at all: every
answer is a constant. It says ``engine: canned`` wherever it answers and is for measurements only.

    python -m loadtest.fake_node --port 0 --messages 64
    python -m loadtest.fake_node --redis unix:///run/store.sock --node-id fake-1
    python -m loadtest.fake_node --count 1000 --report-every 1

With ``--pace`` each message of a stream carries the time it was sent at (loadtest/canned.py). ``--count`` serves so
many nodes, each on a port of its own, from one process. ``--journal`` grants routers that ask for it that streams go
on elsewhere, with token ids beside the tunnel's events; it does not go on with any itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time

import uvloop

from loadtest.canned import DONE, TEXT, Stamped, chat_body, sse_event, wants_stream
from loadtest.raw_wire import NodeConnection
from shared import headers as names
from shared.ids import boot_id
from shared.net.api import Acceptor, Headers, ServerSink, ServerStream
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2, node_pb2, openai_pb2
from shared.version import PROTOCOL, __version__

CAPACITY = 1 << 30  # tokens: never the limit, so that only the router is measured
BLOCK = 16
_HEAD: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_UNIMPLEMENTED: Headers = [*_HEAD, (b"grpc-status", b"12")]
_WATCH = b"/laya.v1.Node/Watch"
_GRANTED: Headers = [*_HEAD, (names.JOURNAL, b"1")]
_OK: Headers = [(b"grpc-status", b"0")]
_REPORT_EVERY = 0.05  # seconds; a real node's fastest


def _openai(part: openai_pb2.HttpResponse) -> bytes:
    return frame(part.SerializeToString())


def _head(kind: str) -> bytes:
    header = openai_pb2.HttpHeader(name="content-type", value=kind)
    return _openai(openai_pb2.HttpResponse(head=openai_pb2.HttpResponseHead(status=200, headers=[header])))


def _token(text: str) -> bytes:
    return frame(inference_pb2.GenerateResponse(text=text, token_ids=[7]).SerializeToString())


class Canned:
    """The answers, framed once. ``messages`` is the length of a stream."""

    def __init__(self, model: str, messages: int, journal: bool = False) -> None:
        ids = [7] if journal else []
        whole = inference_pb2.CompleteResponse(
            model=model,
            engine="canned",
            completions=[inference_pb2.Completion(text=TEXT, finish_reason=inference_pb2.FINISH_REASON_STOP)],
        )
        self.unary = frame(whole.SerializeToString())
        self.token = _token("canned ")
        self.stamped = Stamped(_token(Stamped.TEXT))
        self.messages = messages
        self.http = _head("application/json") + _openai(openai_pb2.HttpResponse(body=chat_body(model)))
        self.sse_head = _head("text/event-stream")
        self.sse_token = _openai(openai_pb2.HttpResponse(body=sse_event(model, "canned "), token_ids=ids))
        stamped = openai_pb2.HttpResponse(body=sse_event(model, Stamped.TEXT), token_ids=ids)
        self.sse_stamped = Stamped(_openai(stamped))
        self.sse_end = _openai(openai_pb2.HttpResponse(body=DONE))


class FakeNode:
    """One canned node; ``accept`` serves it."""

    def __init__(
        self, node_id: str, model: str, messages: int, pace: float, report_every: float, journal: bool = False
    ) -> None:
        self.node_id = node_id
        self.boot = boot_id()
        self.canned = Canned(model, messages, journal)
        self.journal = journal
        self.pace = pace  # seconds between the messages of a stream; 0 sends them at once
        self.report_every = report_every
        self.running = 0
        self.watchers: dict[str, Watch] = {}
        self.model = model

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        """Owner of a new call."""
        path = dispatch = b""
        for name, value in headers:
            if name == b":path":
                path = value
            elif name == names.DISPATCH:
                dispatch = value
        method = path.rpartition(b"/")[2]
        if method == b"Watch":
            if path == _WATCH:
                return Watch(self, stream)
            stream.respond(_UNIMPLEMENTED, True)  # a health watch: it has no such service
            return None
        journal = self.journal and (names.JOURNAL, b"1") in headers
        call = Call(self, stream, method, _GRANTED if journal else _HEAD)
        if dispatch:
            self._count(dispatch.decode("ascii", "replace"))
        if end:
            call.answer()
        return call

    def _count(self, dispatch: str) -> None:
        watch = self.watchers.get(dispatch.rpartition("-")[0])
        if watch is not None:
            watch.counted.append(dispatch)

    def describe(self) -> bytes:
        """The framed DescribeResponse."""
        spec = node_pb2.ModelSpec(name=self.model, max_seq_len=1 << 20, engine="canned")
        answer = node_pb2.DescribeResponse(
            node_id=self.node_id,
            boot_id=self.boot,
            version=__version__,
            protocol=PROTOCOL,
            model=spec,
            kv_capacity_tokens=CAPACITY,
            kv_block_tokens=BLOCK,
            max_num_seqs=1 << 20,
            default_max_tokens=64,
            ready=True,
        )
        return frame(answer.SerializeToString())


class Call(ServerSink):
    """One call; answered once the request is whole."""

    __slots__ = ("_body", "_closed", "_head", "_left", "_method", "_node", "_stream", "_timer")

    def __init__(self, node: FakeNode, stream: ServerStream, method: bytes, head: Headers) -> None:
        self._node = node
        self._head = head
        self._stream = stream
        self._method = method
        self._body = b""
        self._left = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        node.running += 1

    def on_data(self, data: bytes, end: bool) -> None:
        """Request bytes: only the tunnel's are looked at, for "stream"."""
        self._stream.consumed(len(data))
        if self._method == b"Call":
            self._body += data
        if end:
            self.answer()

    def on_trailers(self, headers: Headers) -> None:
        """Request trailers end the request too."""
        self.answer()

    def answer(self) -> None:
        """Send the constant of this method."""
        method, stream, canned = self._method, self._stream, self._node.canned
        stream.respond(self._head)
        if method == b"Describe":
            stream.send(self._node.describe())
        elif method in (b"Generate", b"Chat"):
            self._begin_stream(canned.token, canned.stamped)
            return
        elif method == b"Call":
            if wants_stream(self._body):
                stream.send(canned.sse_head)
                self._begin_stream(canned.sse_token, canned.sse_stamped, canned.sse_end)
                return
            stream.send(canned.http)
        else:
            stream.send(canned.unary)
        stream.trailers(_OK)

    def _begin_stream(self, token: bytes, stamped: Stamped, last: bytes = b"") -> None:
        if not self._node.pace:
            for _ in range(self._node.canned.messages):
                self._stream.send(token)
            self._finish(last)
            return
        self._left = self._node.canned.messages
        self._next(stamped, last)

    def _next(self, stamped: Stamped, last: bytes) -> None:
        if self._closed:
            return
        self._stream.send(stamped.now())
        self._left -= 1
        if self._left:
            self._timer = asyncio.get_running_loop().call_later(self._node.pace, self._next, stamped, last)
        else:
            self._finish(last)

    def _finish(self, last: bytes) -> None:
        if last:
            self._stream.send(last)
        self._stream.trailers(_OK)

    def on_sent(self, n: int) -> None:
        """Nothing waits for room."""

    def on_closed(self, code: int) -> None:
        """The call is over."""
        self._closed = True
        self._node.running -= 1
        if self._timer is not None:
            self._timer.cancel()


class Watch(ServerSink):
    """One router's watch: reports at a real node's pace."""

    __slots__ = ("_body", "_handle", "_id", "_node", "_sequence", "_stream", "counted")

    def __init__(self, node: FakeNode, stream: ServerStream) -> None:
        self._node = node
        self._stream = stream
        self._body = b""
        self._id = ""
        self._sequence = 0
        self._handle: asyncio.TimerHandle | None = None
        self.counted: list[str] = []

    def on_data(self, data: bytes, end: bool) -> None:
        """The WatchRequest."""
        self._stream.consumed(len(data))
        self._body += data
        if end:
            self._id = node_pb2.WatchRequest.FromString(self._body[5:]).watcher_id
            self._node.watchers[self._id] = self
            self._stream.respond(_HEAD)
            self._report()

    def on_trailers(self, headers: Headers) -> None:
        """Nothing follows a watch request."""

    def _report(self) -> None:
        self._sequence += 1
        counted, self.counted = self.counted, []
        report = node_pb2.WatchResponse(
            sequence=self._sequence,
            boot_id=self._node.boot,
            kv_capacity_tokens=CAPACITY,
            headroom_tokens=CAPACITY - self._node.running * 1024,
            running=self._node.running,
            prefill_tokens_per_second=1e6,
            decode_tokens_per_second=1e6,
            counted_dispatches=counted,
            full=self._sequence == 1,
            ready=True,
        )
        self._stream.send(frame(report.SerializeToString()))
        self._handle = asyncio.get_running_loop().call_later(self._node.report_every, self._report)

    def on_sent(self, n: int) -> None:
        """Reports are small; nothing waits."""

    def on_closed(self, code: int) -> None:
        """The router left."""
        if self._handle is not None:
            self._handle.cancel()
        if self._node.watchers.get(self._id) is self:
            del self._node.watchers[self._id]


async def _register(url: str, node: FakeNode, address: str, cluster: str, token: str) -> None:
    """Keep the signed registration fresh until cancelled."""
    import redis.asyncio

    from router_node.discovery.registration import Registration, events_channel, index_key, node_key, sign

    async with redis.asyncio.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0) as store:
        key, index = node_key(cluster, node.node_id), index_key(cluster)
        try:
            while True:
                record = Registration(
                    node_id=node.node_id,
                    boot_id=node.boot,
                    address=address,
                    model=node.model,
                    issued_at=time.time(),
                    ttl=8.0,
                )
                with contextlib.suppress(redis.exceptions.RedisError):
                    await store.set(key, sign(record, cluster, token.encode()), px=8000)
                    await store.sadd(index, node.node_id)
                    await store.publish(events_channel(cluster), "1")
                await asyncio.sleep(2.0)
        finally:
            with contextlib.suppress(redis.exceptions.RedisError):
                await store.delete(key)


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    servers, addresses = [], []
    for i in range(args.count):
        name = args.node_id if args.count == 1 else f"{args.node_id}-{i}"
        node = FakeNode(name, args.model, args.messages, args.pace, args.report_every, args.journal)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", args.port))

        def make(accept: Acceptor = node.accept) -> asyncio.Protocol:
            return NodeConnection(accept)

        servers.append(await loop.create_server(make, sock=sock, backlog=1024))
        addresses.append(f"127.0.0.1:{sock.getsockname()[1]}")
    address = addresses[0]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    task = None
    if args.redis:
        token = os.environ.get("LAYA_SERVER__CLUSTER_TOKEN", "")
        task = asyncio.create_task(_register(args.redis, node, address, args.cluster, token))
    ready = {"event": "ready", "address": address, "node_id": args.node_id, "engine": "canned", "addresses": addresses}
    line = json.dumps(ready)
    if args.ready_fd >= 0:
        os.write(args.ready_fd, line.encode() + b"\n")
        os.close(args.ready_fd)
    else:
        print(line, flush=True)
    try:
        await stop.wait()
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for server in servers:
            server.close()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--node-id", default=f"fake-{os.getpid()}")
    parser.add_argument("--model", default="canned")
    parser.add_argument("--messages", type=int, default=64, help="messages of a stream")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between the messages of a stream")
    parser.add_argument("--count", type=int, default=1, help="nodes that this process serves")
    parser.add_argument("--report-every", type=float, default=_REPORT_EVERY, help="seconds between reports")
    parser.add_argument("--journal", action="store_true", help="say that streams can go on elsewhere")
    parser.add_argument("--redis", default="")
    parser.add_argument("--cluster", default="laya")
    parser.add_argument("--ready-fd", type=int, default=-1)
    args = parser.parse_args()
    if min(args.messages, args.count) < 1 or args.pace < 0 or args.report_every <= 0:
        sys.exit("--messages and --count must be 1 or more, --pace 0 or more, --report-every above 0")
    if args.count > 1 and (args.port or args.redis):
        sys.exit("--count takes its ports from the system and registers nothing: leave out --port and --redis")
    uvloop.run(serve(args))


if __name__ == "__main__":
    main()
