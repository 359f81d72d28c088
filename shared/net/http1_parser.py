"""HTTP/1.1 requests out of bytes. Sans-I/O.

llhttp parses what has not been seen before, with the rules of ``http1_llhttp``. A head that came before on the same
connection is not parsed again (``http1_known``), and the body behind it goes by its length alone.

The outcome depends on the bytes alone, not on how they were cut into reads.
"""

from __future__ import annotations

from typing import Final

from shared.net.exchange import RequestHead
from shared.net.gather import Piece, gather, whole
from shared.net.http1_known import MOST_BYTES, KnownHeads
from shared.net.http1_llhttp import BodyGate, Llhttp, OnRequest, body_too_large
from shared.net.http1_llhttp import Refusal as Refusal

SLICE: Final = 16 << 10  # bytes parsed at once, so that one read cannot make more requests than this holds
_DIGITS: Final = 10  # of a content-length that is looked at closely


class RequestParser:
    """Parses one connection's requests; ``on_request`` is called for each within ``take``.

    ``max_header`` bounds a request's head as HTTP/2 counts it: target, names and values, and 32 bytes a header.
    """

    __slots__ = ("_body", "_gate", "_got", "_head", "_left", "_max_body", "_on_request", "_parser")

    def __init__(
        self,
        on_request: OnRequest,
        max_header: int,
        max_body: int,
        gate: BodyGate | None = None,
        heads: KnownHeads | None = None,
    ) -> None:
        """``gate`` is asked before a body is taken, and may refuse it; ``heads`` are shared with other connections."""
        self._on_request: OnRequest | None = on_request
        self._gate = gate
        self._max_body = max_body
        self._parser = Llhttp(on_request, max_header, max_body, gate, heads if heads is not None else KnownHeads())
        self._head: RequestHead | None = None  # of a request whose body goes by its length alone, and lacks
        self._left = 0  # so many bytes
        self._got = 0
        self._body: list[Piece] = []

    @property
    def idle(self) -> bool:
        """Between requests: no byte of the next one has come."""
        return not self._left and self._parser.idle

    @property
    def in_head(self) -> bool:
        """Inside a request's line or headers."""
        return self._parser.in_head

    @property
    def expecting(self) -> bool:
        """The client waits for 100 Continue before it sends its body."""
        return self._parser.expecting

    @property
    def held(self) -> int:
        """Bytes of the body that is arriving."""
        return self._got if self._left else self._parser.held

    def continued(self) -> None:
        """100 Continue has been sent."""
        self._parser.continued()

    def drop(self) -> None:
        """Let go of the request that is arriving: it is refused, and nothing follows it."""
        self._left = 0
        self._body = []
        self._parser.drop()

    def release(self) -> None:
        """Break the reference cycle with httptools; call it when the connection is gone."""
        self._left = 0
        self._body = []
        self._on_request = self._gate = None
        self._parser.release()

    def feed(self, data: bytes) -> None:
        """``take`` all of it."""
        at = 0
        while at < len(data):
            at = self.take(data, at)

    def take(self, data: bytes, at: int) -> int:
        """Parse some bytes from ``at`` on; returns where to go on.

        Raises Refusal, after which nothing more can be taken. Bytes after the last request are ignored.
        """
        if self._left:
            return self._more(data, at)
        parser = self._parser
        stop = min(len(data), at + SLICE)
        if parser.idle:
            known = parser.known
            if known is not None and data.startswith(known.prefix, at):
                end = self._again(known, data, at + len(known.prefix))
                if end:
                    return end
            first = data[at]
            if first != 0x0D and first != 0x0A:  # empty lines may come before a request
                end = data.find(b"\r\n\r\n", at, min(stop, at + MOST_BYTES))
                if end > 0:
                    parser.raw_head = data[at : end + 4]
        parser.feed(data if not at and stop == len(data) else memoryview(data)[at:stop])
        return stop

    def _again(self, head: RequestHead, data: bytes, at: int) -> int:
        """Perhaps a request with a known head, as far as ``at``: returns where it or the data ends, 0 if it is not."""
        size = 0
        if head.sized:
            end = data.find(b"\r", at, at + _DIGITS + 1)
            digits = data[at : max(end, at)]
            if not digits.isdigit() or not data.startswith(head.suffix, end):
                return 0
            at = end + len(head.suffix)
            size = int(digits)
            if size > self._max_body:
                raise body_too_large(self._max_body)
            if size and self._gate is not None:
                error = self._gate(head.method, head.target, head.headers, size)
                if error is not None:
                    raise Refusal("refused_early", error)
        if len(data) - at < size:
            self._head = head
            self._left = size
            self._got = 0
            return self._more(data, at) if len(data) > at else at
        if self._on_request is not None:
            self._on_request(head, data[at : at + size])
        return at + size

    def _more(self, data: bytes, at: int) -> int:
        """A part of a body that goes by its length."""
        stop = min(len(data), at + self._left)
        gather(self._body, data[at:stop])
        self._got += stop - at
        self._left -= stop - at
        if not self._left:
            body = whole(self._body)
            self._body = []
            head, self._head = self._head, None
            if head is not None and self._on_request is not None:
                self._on_request(head, body)
        return stop
