"""The head of an HTTP/1.1 answer as one bytes object, and what HTTP/1.1 and HTTP/2 answers have in common."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from shared.errors import LayaError
from shared.net.api import Headers

# Set by the connection itself; an owner's are dropped. A HEAD answer keeps the content-length it is given.
HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_CONTENT: Final = frozenset((204, 304))  # statuses whose answers never have a body
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
CLOSE: Final = b"connection: close\r\n"
KEEP_ALIVE: Final = b"connection: keep-alive\r\n"

_STATUS_LINES: Final = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus} | {
    499: b"HTTP/1.1 499 Client Closed Request\r\n"
}


class HttpDate:
    """The Date header's value, made once a second."""

    __slots__ = ("_second", "line", "value")

    def __init__(self) -> None:
        self._second = 0
        self.value = b""
        self.line = b""

    def refresh(self) -> None:
        """Bring ``value`` and ``line`` up to date."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self.value = formatdate(now, usegmt=True).encode()
            self.line = b"date: " + self.value + b"\r\n"


def head(status: int, headers: Headers, framing: bytes, date: bytes) -> bytes:
    """Status line, ``date`` (one line), ``framing`` (some lines), the owner's headers, and the empty line.

    A header whose name or value holds CR, LF or NUL is left out: it would be the client's next header, or answer.
    """
    parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, date, framing]
    for name, value in headers:
        if name not in HOP_BY_HOP:
            parts.append(name)
            parts.append(b": ")
            parts.append(value)
            parts.append(b"\r\n")
    parts.append(b"\r\n")
    made = b"".join(parts)
    lines = len(parts) // 4 + 2 + framing.count(b"\n")
    if made.count(b"\n") != lines or made.count(b"\r") != lines or b"\0" in made:
        return head(status, [pair for pair in headers if _clean(pair)], framing, date)
    return made


def given_length(headers: Headers) -> bytes | None:
    """The content-length among an owner's headers, for a HEAD answer."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return value
    return None


def error_answer(error: LayaError) -> tuple[Headers, bytes]:
    """Headers and body of the OpenAI error object."""
    headers = [(b"content-type", b"application/json")]
    if error.http_status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="laya"'))
    retry = error.retry_after_header()
    if retry is not None:
        headers.append((b"retry-after", retry))
    return headers, error.openai_body()


def last_answer(error: LayaError, date: bytes) -> bytes:
    """The whole answer to a request that could not be read, after which the connection closes."""
    headers, body = error_answer(error)
    return head(error.http_status, headers, b"content-length: %d\r\n" % len(body) + CLOSE, date) + body


def _clean(pair: tuple[bytes, bytes]) -> bool:
    name, value = pair
    return bool(name) and not any(bad in name or bad in value for bad in (b"\r", b"\n", b"\0"))
