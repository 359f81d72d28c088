"""An HttpExchange in memory: keeps what was answered, and lets a test play the client."""

from __future__ import annotations

from collections.abc import Callable

from shared.net.api import Headers, HttpHandler
from shared.net.exchange import HttpExchange, RequestHead


class FakeExchange(HttpExchange):
    """One request. ``parts`` are the body's pieces as they were written; ``state`` says how the answer stands."""

    def __init__(
        self, method: bytes = b"GET", target: bytes = b"/", headers: Headers | None = None, body: bytes = b""
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers or []
        self.body = body
        self.head = RequestHead(method, target, self.headers)
        self.on_abort = None
        self.on_drain = None
        self.status = 0
        self.reply_headers: Headers = []
        self.parts: list[bytes] = []
        self.state = "fresh"
        self._queued = 0

    def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body of a finished answer."""
        assert self.state in ("responded", "finished"), self.state
        return self.status, dict(self.reply_headers), b"".join(self.parts)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        assert self.state == "fresh", f"respond after {self.state}"
        self.state = "responded"
        self.status, self.reply_headers, self.parts = status, headers, [body]

    def start(self, status: int, headers: Headers) -> None:
        assert self.state == "fresh", f"start after {self.state}"
        self.state = "started"
        self.status, self.reply_headers = status, headers

    def write(self, data: bytes) -> None:
        assert self.state == "started", f"write after {self.state}"
        self.parts.append(data)
        self._queued += len(data)

    def finish(self) -> None:
        assert self.state == "started", f"finish after {self.state}"
        self.state = "finished"

    def abort(self) -> None:
        assert self.state in ("fresh", "started"), f"abort after {self.state}"
        self.state = "aborted"

    def drain(self) -> int:
        """The client reads everything; returns how many bytes that was."""
        n, self._queued = self._queued, 0
        if n and self.on_drain is not None:
            self.on_drain(n)
        return n

    def leave(self) -> None:
        """The client goes away."""
        if self.state in ("responded", "finished", "aborted"):
            return
        self.state = "left"
        gone, self.on_abort = self.on_abort, None
        if gone is not None:
            gone()

    @property
    def queued(self) -> int:
        return self._queued

    @property
    def peer(self) -> str:
        return "127.0.0.1:5"


ENDS: dict[str, Callable[[HttpExchange], object]] = {
    "answered": lambda exchange: exchange.respond(200, [], b""),
    "finished": lambda exchange: (exchange.start(200, []), exchange.finish()),
    "cut off": lambda exchange: exchange.abort(),
}
"""The ways in which an exchange may end."""


def owned(end: Callable[[HttpExchange], object]) -> HttpHandler:
    """A handler that owns its exchange, as far as that goes, and ends it."""

    def handler(exchange: HttpExchange) -> None:
        exchange.on_abort = lambda: None
        exchange.on_drain = lambda _: None
        end(exchange)

    return handler
