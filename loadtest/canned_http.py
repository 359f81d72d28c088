"""A canned OpenAI backend over HTTP/1.1, for peers that speak no gRPC to their nodes: every answer is a constant.

    python -m loadtest.canned_http --port 0 --messages 64 [--pace 0.025]

It reads just enough of a request to find its end, for it must not be what a benchmark measures; it is no example of an
HTTP server. What routers ask a worker about itself (models, version, health) is answered too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from typing import cast

import uvloop

from loadtest.canned import DONE, Stamped, chat_body, sse_event, wants_stream

_LIMIT = 4 << 20  # bytes of one request
_REMEMBERED = 256  # rendered prompts
_LAST = b"0\r\n\r\n"


def _answer(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Backend:
    """The answers, ready to be sent."""

    def __init__(self, model: str, messages: int, pace: float) -> None:
        self.messages = messages
        self.pace = pace  # seconds between the events of a stream; 0 sends them at once
        self.chat = _answer(b"200 OK", chat_body(model))
        self.sse_head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        self.sse_token = _chunk(sse_event(model, "canned "))
        self.sse_stamped = Stamped(_chunk(sse_event(model, Stamped.TEXT)))
        self.sse_end = _chunk(DONE) + _LAST
        listed = {
            "id": model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": model,
            "max_model_len": 32768,
        }
        info = {"model_path": model, "served_model_name": model, "model_id": model, "tp_size": 1, "dp_size": 1}
        self.about = {
            path: _answer(b"200 OK", json.dumps(value).encode())
            for path, value in {
                b"/v1/models": {"object": "list", "data": [listed]},
                b"/version": {"version": "0.31.0"},
                b"/health": {},
                b"/server_info": info,
                b"/get_server_info": info,
                b"/model_info": {**info, "is_generation": True},
                b"/get_model_info": {**info, "is_generation": True},
            }.items()
        }
        self.nothing = _answer(b"404 Not Found", b'{"error":{"message":"not here","code":404}}')
        self.render_model = model.encode()
        self._rendered: dict[bytes, bytes] = {}

    def render(self, body: bytes) -> bytes:
        """vLLM's /render: the token ids of a prompt, here one for every four bytes, so that equal beginnings agree.

        Remembered, for a router may ask it of every worker for every request.
        """
        answer = self._rendered.get(body)
        if answer is None:
            ids = b",".join(b"%d" % (int.from_bytes(body[i : i + 4]) % 30_000) for i in range(0, len(body), 4))
            text = b'{"request_id":"r","model":"%b","stream":false,"sampling_params":{},"token_ids":[%b]}'
            answer = _answer(b"200 OK", text % (self.render_model, ids))
            if len(self._rendered) < _REMEMBERED:
                self._rendered[body] = answer
        return answer


class Conn(asyncio.Protocol):
    """One connection; requests are answered in turn."""

    __slots__ = ("_backend", "_data", "_left", "_timer", "_transport")

    _transport: asyncio.Transport

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._data = b""
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._data = self._data + data if self._data else data
        while self._data and not self._left:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                break
            head = self._data[: end + 2].lower()
            at = head.find(b"\r\ncontent-length:")
            size = 0
            try:
                if at >= 0:
                    size = int(head[at + 17 : head.index(b"\r\n", at + 17)])
                elif b"\r\ntransfer-encoding:" in head:
                    size = self._chunked_size(end + 4)
            except ValueError:
                self._transport.close()
                return
            if size < 0 or len(self._data) < end + 4 + size:
                break
            body = self._data[end + 4 : end + 4 + size]
            self._data = self._data[end + 4 + size :]
            self._serve(head, body)
        if len(self._data) > _LIMIT:
            self._transport.close()

    def _chunked_size(self, start: int) -> int:
        """Bytes of a chunked body with its framing, -1 when it is not whole. Raises ValueError."""
        at = start
        while True:
            line = self._data.find(b"\r\n", at)
            if line < 0:
                return -1
            size = int(self._data[at:line].partition(b";")[0], 16)
            at = line + 2 + size + 2
            if at > len(self._data):
                return -1
            if not size:
                return at - start

    def _serve(self, head: bytes, body: bytes) -> None:
        backend = self._backend
        first = head[: head.find(b"\r\n")].split(b" ")
        path = first[1].partition(b"?")[0] if len(first) == 3 else b""
        if first[0] == b"pri":  # somebody asks whether this is HTTP/2
            self._transport.close()
        elif path in (b"/v1/chat/completions", b"/v1/completions"):
            if wants_stream(body):
                self._stream()
            else:
                self._transport.write(backend.chat)
        elif path == b"/v1/chat/completions/render":
            self._transport.write(backend.render(body))
        else:
            self._transport.write(backend.about.get(path, backend.nothing))

    def _stream(self) -> None:
        backend = self._backend
        self._transport.write(backend.sse_head)
        if backend.pace:
            self._left = backend.messages
            self._next()
            return
        for _ in range(backend.messages):
            self._transport.write(backend.sse_token)
        self._transport.write(backend.sse_end)

    def _next(self) -> None:
        backend = self._backend
        self._transport.write(backend.sse_stamped.now())
        self._left -= 1
        if self._left:
            self._timer = asyncio.get_running_loop().call_later(backend.pace, self._next)
            return
        self._timer = None
        self._transport.write(backend.sse_end)
        self.data_received(b"")  # what came meanwhile


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    backend = Backend(args.model, args.messages, args.pace)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", args.port))
    server = await loop.create_server(lambda: Conn(backend), sock=sock, backlog=4096)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    line = json.dumps({"event": "ready", "address": f"127.0.0.1:{sock.getsockname()[1]}", "engine": "canned"})
    if args.ready_fd >= 0:
        os.write(args.ready_fd, line.encode() + b"\n")
        os.close(args.ready_fd)
    else:
        print(line, flush=True)
    try:
        await stop.wait()
    finally:
        server.close()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="canned")
    parser.add_argument("--messages", type=int, default=64, help="events of a stream")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between the events of a stream")
    parser.add_argument("--ready-fd", type=int, default=-1)
    args = parser.parse_args()
    if args.messages < 1 or args.pace < 0:
        sys.exit("--messages must be 1 or more and --pace 0 or more")
    uvloop.run(serve(args))


if __name__ == "__main__":
    main()
