"""Writes ``HttpRequest`` and reads ``HttpResponse`` messages of the OpenAI tunnel, at the cost of a few slices.

The two messages are simple enough that building protobuf objects for each streamed token would be most of the work.
Body bytes are handed on as they come, a message that spans many DATA frames included, so nothing grows here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from router_node.relay import wire
from router_node.relay.wire import put_varint
from shared import headers as names
from shared.errors import Code, LayaError
from shared.net.api import Headers

# Of an application's response these are the connection's or the router's own.
NOT_TO_CLIENT: Final = (
    frozenset(
        (
            b"connection",
            b"content-length",
            b"date",
            b"keep-alive",
            b"proxy-connection",
            b"server",
            b"set-cookie",
            b"te",
            b"trailer",
            b"transfer-encoding",
            b"upgrade",
        )
    )
    | names.ROUTER_SET
    | {names.NODE, names.REQUEST_ID, names.ROUTER_TIME}
)
MAX_HEAD: Final = 256 << 10  # bytes of a message that must be whole before it can be read
_PREFIX: Final = 5
_FIELD: Final = 11  # bytes of a field's tag and length at most
_PART_BODY: Final = 0x12  # HttpResponse.body
_PART_HEAD: Final = 0x0A  # HttpResponse.head


def header_fields(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as the repeated field of an ``HttpRequest``."""
    out = bytearray()
    for name, value in headers:
        field = b"\x0a" + put_varint(len(name)) + name + b"\x12" + put_varint(len(value)) + value
        out += b"\x1a" + put_varint(len(field)) + field
    return bytes(out)


def request_opening(method: bytes, target: bytes, headers: bytes) -> bytes:
    """The message up to the length of its body; made once for each known route. ``headers`` as ``header_fields``."""
    start = b"\x0a" + put_varint(len(method)) + method + b"\x12" + put_varint(len(target)) + target
    return start + headers + b"\x22"


def request_message(opening: bytes, body: bytes) -> bytes:
    """The framed message up to where the body begins; the body follows it as it is."""
    whole = len(body)
    size = put_varint(whole)
    return b"\0" + (len(opening) + len(size) + whole).to_bytes(4, "big") + opening + size


class ResponseHead:
    """Status and headers of a response, names in lower case, without those that are not for the client.

    Heads are shared between responses that say the same: whoever is given one leaves it as it is.
    """

    __slots__ = ("events", "headers", "json", "retry_after", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = [pair for pair in headers if pair[0] not in NOT_TO_CLIENT]
        kind = b""
        self.retry_after: float | None = None  # seconds
        for name, value in headers:
            if name == b"content-type":
                kind = value[:17].lower()
            elif name == b"retry-after" and value.isdigit() and len(value) < 6:
                self.retry_after = float(value)
        self.events = kind == b"text/event-stream"
        self.json = kind[:16] == b"application/json"


class TunnelReader:
    """Cuts the DATA of one response into its head and its body bytes. ``head`` is None until it came."""

    __slots__ = ("_held", "_left", "head")

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self._held = b""
        self._left = 0

    @property
    def whole(self) -> bool:
        """Whether the bytes so far end at a message's end."""
        return not self._left and not self._held

    def feed(self, data: bytes) -> bytes:
        """The body bytes in ``data``, in order. Raises LayaError INTERNAL for what is no tunnel response."""
        body = b""
        at = 0
        left = self._left
        if left:
            if len(data) <= left:
                self._left = left - len(data)
                return data
            self._left = 0
            body = data[:left]
            at = left
        elif self._held:
            data = self._held + data
            self._held = b""
        end = len(data)
        more: list[bytes] | None = None  # where there are several
        while at < end:
            start = at + _PREFIX
            if start > end:
                break
            if data[at]:
                raise _broken("a compressed message")
            size = data[at + 1] << 24 | data[at + 2] << 16 | data[at + 3] << 8 | data[at + 4]
            stop = start + size
            # A message that is one body field, as nearly all are: its bytes go on as they come.
            begin = _only_body(data, start, stop) if end - start > _FIELD or stop <= end else 0
            if begin:
                if stop > end:
                    self._left = stop - end
                    stop = end
                part = data[begin:stop]
            elif stop > end:
                if size > MAX_HEAD:
                    raise _broken(f"a head of {size} bytes")
                break
            else:
                part = self._other(data[start:stop])
            at = stop
            if more is not None:
                more.append(part)
            elif body:
                more = [body, part]
            else:
                body = part
        if at < end:
            self._held = data[at:] if at else data
        return body if more is None else b"".join(more)

    def _other(self, message: bytes) -> bytes:
        """Body of a message that is more than that, or something else: mostly the head."""
        if self.head is None and len(message) <= _SHORT_HEAD and (head := _known_message(message)) is not None:
            self.head = head
            return b""
        return self._message(message)

    def _message(self, message: bytes) -> bytes:
        """A message of any form: keep its head, return its body."""
        body = b""
        pos, end = 0, len(message)
        try:
            while pos < end:
                key, pos = wire.tag(message, pos)
                start = pos
                pos = wire.skip(message, pos, end, key)
                if key == _PART_HEAD:
                    if self.head is None:
                        self.head = read_head(message[wire.length(message, start)[1] : pos])
                elif key == _PART_BODY:
                    body = message[wire.length(message, start)[1] : pos]
        except (IndexError, wire.Malformed):
            raise _broken("a malformed message") from None
        return body


def _only_body(data: bytes, start: int, stop: int) -> int:
    """Where the body begins in a message from ``start`` to ``stop`` that is one body field; 0 when it is not."""
    if stop == start or data[start] != _PART_BODY:
        return 0
    try:
        size = data[start + 1]
        if size < 0x80:
            begin = start + 2
        else:
            high = data[start + 2]
            if high < 0x80:
                size = size & 0x7F | high << 7
                begin = start + 3
            else:
                size, begin = wire.varint(data, start + 1)
    except (IndexError, wire.Malformed):
        return 0  # a length that ends nowhere
    return begin if begin + size == stop else 0


def read_head(raw: bytes) -> ResponseHead:
    """Parse an ``HttpResponseHead``. Raises LayaError INTERNAL for a status that is none."""
    status = 0
    headers: Headers = []
    pos, end = 0, len(raw)
    while pos < end:
        key, pos = wire.tag(raw, pos)
        if key == 0x08:
            status, pos = wire.varint(raw, pos)
        elif key == 0x12:
            size, pos = wire.length(raw, pos)
            headers.append(_read_header(raw[pos : pos + size]))
            pos += size
        else:
            pos = wire.skip(raw, pos, end, key)
    if not 200 <= status <= 599:
        raise _broken(f"status {status}")
    return ResponseHead(status, headers)


# Nearly every response begins with one of very few heads, and parsing one costs more than all the rest of it.
_SHORT_HEAD: Final = 512  # bytes of a message


@lru_cache(256)
def _known_message(message: bytes) -> ResponseHead | None:
    """The head of a message that is nothing but a head, else None."""
    try:
        key, start = wire.tag(message, 0)
        size, start = wire.length(message, start)
        if key != _PART_HEAD or start + size != len(message):
            return None
        return read_head(message[start:])
    except (IndexError, wire.Malformed):
        return None


def _read_header(raw: bytes) -> tuple[bytes, bytes]:
    name = value = b""
    pos, end = 0, len(raw)
    while pos < end:
        key, pos = wire.tag(raw, pos)
        start = pos
        pos = wire.skip(raw, pos, end, key)
        if key == 0x0A:
            name = raw[wire.length(raw, start)[1] : pos].lower()
        elif key == 0x12:
            value = raw[wire.length(raw, start)[1] : pos]
    return name, value


def _broken(what: str) -> LayaError:
    return LayaError(Code.INTERNAL, "NODE_PROTOCOL", f"The node answered with {what}, which is no tunnel response.")
