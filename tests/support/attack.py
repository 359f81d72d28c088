"""Attackers and bystanders: raw bytes on a socket, a good client beside them, and what a process takes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import grpc.aio

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.ports import until
from tests.support.processes import Cluster, metric

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
COMPLETE = "/laya.v1.Inference/Complete"
GENERATE = "/laya.v1.Inference/Generate"
CHAT = "/v1/chat/completions"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4

T = TypeVar("T")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame, whatever it may mean."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    """A SETTINGS frame; names as ``w4=0`` for identifier 4."""
    pairs = [int(name[1:]).to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items()]
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def _text(raw: bytes) -> bytes:
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    out, left = bytearray(b"\x7f"), len(raw) - 127
    while left >= 128:
        out.append(left % 128 + 128)
        left //= 128
    out.append(left)
    return bytes(out) + raw


def field(name: bytes, value: bytes) -> bytes:
    """A header field in HPACK, as it is: no table, no Huffman."""
    return b"\x10" + _text(name) + _text(value)


def call(path: str = COMPLETE, *extra: tuple[bytes, bytes], grpc_call: bool = True) -> bytes:
    """A request's header block."""
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x")]
    if grpc_call:
        headers += [(b"te", b"trailers"), (b"content-type", b"application/grpc")]
    return b"".join(field(name, value) for name, value in (*headers, *extra))


def message(raw: bytes) -> bytes:
    """A gRPC message."""
    return b"\0" + len(raw).to_bytes(4, "big") + raw


def small_request(model: str = "sim", max_tokens: int = 1, **sampling: object) -> bytes:
    """A CompleteRequest that costs little."""
    request = pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="hi"))
    request.request.sampling.max_tokens = max_tokens
    for name, value in sampling.items():
        setattr(request.request.sampling, name, value)
    return request.SerializeToString()


class Peer:
    """A socket on which a test says what it likes. Blocking: use it from threads, or for a few bytes."""

    def __init__(self, address: str, http2: bool = True, *first: bytes, timeout: float = 5.0, buffer: int = 0) -> None:
        """``first`` in place of plain SETTINGS; ``buffer`` bounds what the kernel takes in for us, in bytes."""
        host, _, port = address.rpartition(":")
        self.sock = socket.socket()
        if buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.sock.settimeout(timeout)
        self.sock.connect((host, int(port)))
        self.got = b""
        if http2:
            self.send(PREFACE + (b"".join(first) or settings()))

    def send(self, data: bytes) -> bool:
        """False when the other side is gone or takes no more in time."""
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def read(self, seconds: float = 5.0, done: Callable[[bytes], bool] = lambda got: False) -> bytes:
        """Everything up to the end, or until ``done``, or so many seconds."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while not done(self.got) and (left := deadline - time.monotonic()) > 0:
                self.sock.settimeout(left)
                data = self.sock.recv(65_536)
                if not data:
                    break
                self.got += data
        return self.got

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of what has come so far."""
        out, at = [], 0
        while at + 9 <= len(self.got):
            size = int.from_bytes(self.got[at : at + 3], "big")
            stream = int.from_bytes(self.got[at + 5 : at + 9], "big")
            out.append((self.got[at + 3], self.got[at + 4], stream, self.got[at + 9 : at + 9 + size]))
            at += 9 + size
        return out

    def answers(self, count: int = 1, seconds: float = 5.0) -> int:
        """How many streams have been answered: those with a HEADERS frame; returns at ``count``, or after the time."""

        def streams() -> int:
            return len({stream for kind, _, stream, _ in self.frames() if kind == HEADERS})

        self.read(seconds, lambda got: streams() >= count)
        return streams()

    def goaway(self, seconds: float = 5.0) -> int | None:
        """The code of the GOAWAY that ends the connection; None when none comes."""
        self.read(seconds)
        codes = [int.from_bytes(payload[4:8], "big") for kind, _, _, payload in self.frames() if kind == GOAWAY]
        return codes[-1] if codes else None

    @property
    def closed(self) -> bool:
        """Whether the other side has closed."""
        self.sock.settimeout(0.01)
        try:
            while data := self.sock.recv(65_536):
                self.got += data
            return True
        except TimeoutError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Bystander:
    """A good client that calls all the while; ``delays`` are in seconds."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.unary_unary(COMPLETE, request_serializer=None, response_deserializer=None)
        self.delays: list[float] = []

    async def once(self, timeout: float = 20.0) -> None:
        began = time.perf_counter()
        await self._call(small_request(), timeout=timeout)
        self.delays.append(time.perf_counter() - began)

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def bystander(address: str, worst: float = 3.0) -> AsyncIterator[Bystander]:
    """A good client beside an attack: none of its calls may fail, or take longer than ``worst`` seconds."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        one = Bystander(channel)
        await one.once()
        task = asyncio.create_task(one.run())
        try:
            yield one
            await one.once()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert max(one.delays) < worst, f"a good client waited {max(one.delays):.2f} s of {len(one.delays)} calls"


async def aside(work: Callable[[], T]) -> T:
    """Run an attack in a thread, so that the good client goes on."""
    return await asyncio.to_thread(work)


def rss(pid: int) -> int:
    """Memory of a process in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def cpu(pid: int) -> float:
    """CPU seconds of a process."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / 100


def ends(cluster: Cluster, *reasons: str) -> float:
    """How often connections and streams ended for one of these reasons."""
    text = cluster.metrics()
    return sum(metric(text, "laya_router_net_ends_total", reason=reason) for reason in reasons)


def events(cluster: Cluster, event: str) -> float:
    """How often the router counted an event."""
    return metric(cluster.metrics(), "laya_router_events_total", event=event)


async def assert_at_rest(cluster: Cluster, timeout: float = 15.0) -> None:
    """Streams, reservations, waiting requests, holds and engine requests are all back to nothing."""

    def at_rest() -> bool:
        text = cluster.metrics()
        nothing = (
            "laya_router_requests_in_flight",
            "laya_router_queue_depth",
            "laya_router_reservations",
            "laya_router_node_reserved_tokens",
            "laya_router_node_running",
            "laya_router_node_waiting",
        )
        return all(metric(text, name) == 0 for name in nothing) and metric(
            text, "laya_router_node_headroom_tokens"
        ) == metric(text, "laya_router_node_capacity_tokens")

    await until(at_rest, "everything is at rest", timeout)


def assert_logs_are_clean(cluster: Cluster, *secrets: str) -> None:
    """No traceback, no secret."""
    for proc in (cluster.router, *cluster.nodes):
        text = Path(proc.log.name).read_text("utf-8", "replace")
        assert "Traceback" not in text, text[text.find("Traceback") - 500 :][:3000]
        for secret in (cluster.spec.token, *secrets):
            assert secret not in text


def send_all(peers: Iterable[Peer], data: bytes) -> int:
    """How many took it."""
    return sum(peer.send(data) for peer in peers)
