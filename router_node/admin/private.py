"""The private listener: Admin and its neighbours by gRPC; metrics and health by HTTP.

On loopback everybody on the machine may ask. On a wider address the metrics and health stay open, as scrapers and
probes expect, and the Admin service, which can drain nodes, wants the cluster token.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

import msgspec

from shared import headers as names
from shared.errors import Code, LayaError, unavailable
from shared.net.api import Headers, HttpExchange, ServerSink, ServerStream, Upstream
from shared.net.splice import Splice

_ADMIN: Final = b"/laya.v1.Admin/"
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")

# What an operator's client may send on; credentials and hop-by-hop headers stay here.
_PASSED: Final = frozenset(
    (b":method", b":scheme", b":path", b"te", b"content-type", b"grpc-encoding", b"grpc-accept-encoding")
) | frozenset((b"grpc-timeout", b"user-agent", names.REQUEST_ID))

Page = Callable[[str], tuple[str, bytes]]


class PrivateFront:
    """Acceptor and HTTP handler of the private listener.

    ``bridge`` leads to the Unix socket. ``token`` is wanted for Admin calls; empty asks for none. ``not_ready``
    answers "" when the process can serve, else one sentence; ``trouble`` what is wrong though it serves.
    """

    def __init__(
        self,
        bridge: Upstream,
        page: Page,
        not_ready: Callable[[], str],
        token: str = "",
        trouble: Callable[[], str] = str,
    ) -> None:
        self._trouble = trouble
        self._bridge = bridge
        self._page = page
        self._not_ready = not_ready
        self._token = token.encode()

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        """Join a gRPC call to the Unix socket."""
        splice = Splice(stream)
        path = next((value for name, value in headers if name == b":path"), b"")
        if path.startswith(_ADMIN) and not self._allowed(headers):
            splice.fail(
                LayaError(
                    Code.UNAUTHENTICATED,
                    "CLUSTER_TOKEN_INVALID",
                    "Admin calls on this address need the cluster token; send it as laya-cluster-token.",
                )
            )
        elif not splice.join(self._bridge, [(b":authority", b"laya"), *_passed(headers)], end):
            splice.fail(unavailable("The router's admin service is not up yet; try again.", "NOT_READY", 0.5))
        return splice

    def _allowed(self, headers: Headers) -> bool:
        if not self._token:
            return True
        given = next((value for name, value in headers if name == names.CLUSTER_TOKEN), b"")
        return hmac.compare_digest(given, self._token)

    def handle(self, exchange: HttpExchange) -> None:
        """Answer ``/metrics``, ``/healthz`` and ``/readyz``."""
        path = exchange.target.partition(b"?")[0]
        if exchange.method not in (b"GET", b"HEAD"):
            exchange.respond(405, [_JSON, (b"allow", b"GET, HEAD")], _sentence("only GET and HEAD are answered here"))
        elif path == b"/metrics":
            accept = next((value for name, value in exchange.headers if name == b"accept"), b"")
            content_type, body = self._page(accept.decode("latin-1"))
            _respond(exchange, 200, [(b"content-type", content_type.encode())], body)
        elif path == b"/healthz":
            _respond(exchange, 200, [_TEXT], b"ok\n")
        elif path == b"/readyz":
            why = self._not_ready()
            if why:
                _respond(exchange, 503, [_JSON, (b"retry-after", b"1")], _sentence(why))
            else:
                trouble = self._trouble()
                _respond(exchange, 200, [_TEXT], f"ready; {trouble}\n".encode() if trouble else b"ready\n")
        else:
            _respond(exchange, 404, [_JSON], _sentence("here are /metrics, /healthz and /readyz"))


def _respond(exchange: HttpExchange, status: int, headers: Headers, body: bytes) -> None:
    if exchange.method == b"HEAD":
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        body = b""
    exchange.respond(status, headers, body)


def _sentence(text: str) -> bytes:
    return msgspec.json.encode({"error": text}) + b"\n"


def _passed(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name in _PASSED]
