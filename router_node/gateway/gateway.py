"""The OpenAI-style HTTP API: which paths there are, and who answers them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from router_node.gateway.http_relay import HttpRelay
from router_node.gateway.models import MODELS, Models
from router_node.gateway.reply import JSON, Cors, error_reply
from router_node.gateway.tunnel import header_fields, request_message, request_opening
from router_node.relay import fields as routing
from router_node.relay import phases
from router_node.relay.account import Account
from router_node.relay.core import RelayCore
from router_node.relay.fields import Fields
from router_node.relay.peek import peek
from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.ids import sane_request_id
from shared.net.api import Headers
from shared.net.exchange import HttpExchange

# Passed to nodes through the tunnel, as the nodes' own list has it; each of these bodies is JSON with a "model".
TUNNELLED: Final = (b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/responses")
_GET: Final = (b"GET", b"HEAD")
_MAX_TARGET: Final = 4096  # bytes
_CONTENT_TYPE: Final = header_fields([JSON])
_OTHER: Final = "other"


class _Route:
    """A tunnelled path: its label in logs and metrics, and how its message begins."""

    __slots__ = ("label", "opening")

    def __init__(self, path: bytes) -> None:
        self.label = path.decode()
        self.opening = request_opening(b"POST", path, _CONTENT_TYPE)


class Gateway:
    """The handler of HTTP requests on the public port. ``ready`` says whether some node can serve."""

    __slots__ = ("_core", "_cors", "_forward", "_models", "_ready", "_routes")

    def __init__(self, core: RelayCore, ready: Callable[[], bool]) -> None:
        self._core = core
        self._ready = ready
        self._cors = Cors(core.settings.cors_origins)
        self._forward = core.settings.forward_metadata | {names.TRACEPARENT, names.TRACESTATE}
        self._routes = {path: _Route(path) for path in TUNNELLED}
        self._models = Models(core.table)

    def handle(self, exchange: HttpExchange) -> None:
        """Answer a request, now or later. Never raises."""
        core = self._core
        since = core.clock()
        target = exchange.target
        route = self._routes.get(target)
        if route is None:
            path, _, query = target.partition(b"?")
            if query:
                route = self._routes.get(path)
            if route is None or len(target) > _MAX_TARGET:
                if path in (b"/healthz", b"/readyz") and exchange.method in _GET:
                    self._health(exchange, path)
                    return
                route = None
        account = Account(core, "http", _OTHER if route is None else route.label, exchange.peer, since)
        headers = dict(exchange.headers)
        asked = headers.get(names.REQUEST_ID)
        account.request_id = asked if asked is not None and sane_request_id(asked) else core.make_request_id()
        account.bytes_in = len(exchange.body)
        extra = self._cors.headers(headers.get(b"origin")) if self._cors.on else []
        try:
            if route is not None and exchange.method == b"POST":
                self._tunnel(exchange, account, route, headers, extra, since)
            else:
                self._elsewhere(exchange, account, route is not None, headers, extra)
        except LayaError as error:
            self._refuse(exchange, account, error, extra)
        except Exception as error:
            self._refuse(exchange, account, core.defect(error, account.request_id), extra)

    def gate(self, method: bytes, target: bytes, headers: Headers) -> LayaError | None:
        """Nobody without a key has a large body taken in."""
        core = self._core
        if core.authorizer.open:
            return None
        since = core.clock()
        try:
            core.authorizer.authorize(dict(headers).get(b"authorization"))
        except LayaError as error:
            route = self._routes.get(target.partition(b"?")[0])
            account = Account(core, "http", _OTHER if route is None else route.label, "-", since)
            account.request_id = core.make_request_id()
            account.failed(error, http=True)
            account.end()
            return error
        return None

    def _refuse(self, exchange: HttpExchange, account: Account, error: LayaError, extra: Headers) -> None:
        exchange.on_abort = None
        account.failed(error, http=True)
        error_reply(exchange, error, account.request_id, extra)
        account.end()

    # Through the tunnel.

    def _tunnel(
        self,
        exchange: HttpExchange,
        account: Account,
        route: _Route,
        headers: dict[bytes, bytes],
        extra: Headers,
        since: float,
    ) -> None:
        core, body = self._core, exchange.body
        account.caller = core.authorizer.authorize(headers.get(b"authorization"))
        if not body:
            raise invalid("The body is empty: send a JSON object.")
        coding = headers.get(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            raise LayaError(
                Code.INVALID_ARGUMENT,
                "INVALID_REQUEST",
                "The body is compressed, which is not supported: send it without content-encoding.",
                http_status=415,
            )
        account.keep(len(body))
        fields = Fields()
        session = headers.get(names.SESSION) or headers.get(b"x-session-id")
        if session:
            fields.session = routing.session(session, "laya-session")
        priority = headers.get(names.PRIORITY)
        if priority is not None:
            fields.priority = routing.priority(priority, "laya-priority")
            fields.named = True
        peek(body, fields, core.settings)
        given = headers.get(names.TIMEOUT)
        if given is not None or core.settings.total:
            asked = phases.client_limit(given) if given is not None else math.inf
            fields.deadline = core.loop.time() + phases.longest(account, asked)
        account.headers = headers
        if core.table.reads_body:
            account.message = body
        opening = route.opening
        if len(exchange.target) != len(route.label):
            opening = request_opening(b"POST", exchange.target, _CONTENT_TYPE)
        forward: Headers = [(name, headers[name]) for name in self._forward.intersection(headers)]
        HttpRelay(account, exchange, request_message(opening, body), forward, extra).begin(fields, since)

    # Answered here.

    def _elsewhere(
        self, exchange: HttpExchange, account: Account, known: bool, headers: dict[bytes, bytes], extra: Headers
    ) -> None:
        path = exchange.target.partition(b"?")[0]
        allowed: bytes | None = None
        if known:
            allowed = b"POST"
        elif path == MODELS or path.startswith(MODELS + b"/"):
            account.method = "/v1/models"
            allowed = b"GET, HEAD"
        elif path in (b"/healthz", b"/readyz"):
            account.method = path.decode()
            allowed = b"GET, HEAD"
        if allowed is None or len(exchange.target) > _MAX_TARGET:
            shown = path[:80].decode("ascii", "replace")
            raise LayaError(
                Code.NOT_FOUND, "METHOD_UNKNOWN", f"There is nothing at {shown}: the API is at /v1/, see /v1/models."
            )
        if exchange.method == b"OPTIONS" and self._cors.on and b"access-control-request-method" in headers:
            wanted = headers.get(b"access-control-request-headers", b"")
            answer = self._cors.preflight(headers.get(b"origin", b""), wanted, allowed)
            self._finish(exchange, account, 204, answer, b"")
        elif allowed == b"POST" or exchange.method not in _GET:
            method = exchange.method[:16].decode("ascii", "replace")
            error = LayaError(
                Code.UNIMPLEMENTED,
                "METHOD_UNKNOWN",
                f"{method} is not allowed here: use {allowed.decode().replace(', HEAD', '')}.",
                http_status=405,
            )
            self._refuse(exchange, account, error, [*extra, (b"allow", allowed)])
        else:
            account.caller = self._core.authorizer.authorize(headers.get(b"authorization"))
            self._finish(exchange, account, 200, [JSON, *extra], self._models.answer(path))

    def _finish(self, exchange: HttpExchange, account: Account, status: int, headers: Headers, body: bytes) -> None:
        account.code = status
        account.bytes_out = len(body)
        exchange.respond(status, [*headers, (names.REQUEST_ID, account.request_id)], body)
        account.end()

    def _health(self, exchange: HttpExchange, path: bytes) -> None:
        if path == b"/healthz":
            exchange.respond(200, [JSON], b'{"status":"ok"}')
        elif self._ready():
            exchange.respond(200, [JSON], b'{"status":"ready"}')
        else:
            exchange.respond(503, [JSON], b'{"status":"No node is ready to serve yet."}')
