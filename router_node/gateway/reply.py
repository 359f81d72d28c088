"""Answers that the gateway itself writes: errors in OpenAI's form, the error event of a broken stream, CORS."""

from __future__ import annotations

from typing import Final

from router_node.relay.account import Account
from shared import headers as names
from shared.errors import LayaError
from shared.net.api import Headers
from shared.net.exchange import HttpExchange

JSON: Final = (b"content-type", b"application/json")
_WWW: Final = (b"www-authenticate", b'Bearer realm="laya"')
_EXPOSED: Final = (
    b"access-control-expose-headers",
    b"x-request-id, retry-after, laya-node, laya-route, laya-migratable",
)
_VARY: Final = (b"vary", b"origin")
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


def error_reply(exchange: HttpExchange, error: LayaError, request_id: bytes, extra: Headers) -> None:
    """Answer with the OpenAI error object, ``Retry-After`` where a time is known."""
    headers: Headers = [JSON, (names.REQUEST_ID, request_id), *extra]
    retry = error.retry_after_header()
    if retry is not None:
        headers.append((b"retry-after", retry))
    if error.http_status == 401:
        headers.append(_WWW)
    exchange.respond(error.http_status, headers, error.openai_body())


def error_event(error: LayaError, tail: bytes) -> bytes:
    """The error as the last event of a stream whose bytes so far end with ``tail``; no ``[DONE]`` follows.

    Where the stream broke off inside an event, that event is ended first, so that ours is read as its own.
    """
    gap = b"" if not tail or tail.endswith(_EVENT_ENDS) else b"\n\n"
    return gap + b"data: " + error.openai_body() + b"\n\n"


class Cors:
    """Which browsers' pages may call: the origins of ``router.cors_origins``, ``*`` for any."""

    __slots__ = ("_any", "_origins", "on")

    def __init__(self, origins: frozenset[bytes]) -> None:
        self._any = b"*" in origins
        self._origins = origins
        self.on = bool(origins)

    def headers(self, origin: bytes | None) -> Headers:
        """What to add to an answer; nothing for an origin that is not allowed."""
        if origin is None or not (self._any or origin in self._origins):
            return []
        if self._any:
            return [(b"access-control-allow-origin", b"*"), _EXPOSED]
        return [(b"access-control-allow-origin", origin), _VARY, _EXPOSED]

    def preflight(self, origin: bytes, wanted: bytes, methods: bytes) -> Headers:
        """The answer to a preflight for headers ``wanted``; nothing for an origin that is not allowed."""
        allowed = self.headers(origin)
        if not allowed:
            return []
        return [
            *allowed,
            (b"access-control-allow-methods", methods),
            (b"access-control-allow-headers", wanted or b"authorization, content-type"),
            (b"access-control-max-age", b"600"),
        ]


def answer_headers(headers: Headers, account: Account, extra: Headers) -> Headers:
    """Headers of a node's answer, with who gave it, by which rule, and what routing took."""
    out = [
        *headers,
        (names.REQUEST_ID, account.request_id),
        (names.NODE, account.node_id.encode()),
        (names.ROUTER_TIME, b"%d" % (account.routed * 1e6)),
        *extra,
    ]
    account.mark(out)
    return out
