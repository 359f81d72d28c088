"""The OpenAI-style HTTP API: which paths there are, and who answers them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from router_node.gateway.asked import MAX_TARGET, OTHER, TUNNELLED, Asked, Reader, authorization
from router_node.gateway.http_relay import HttpRelay
from router_node.gateway.models import MODELS, Models
from router_node.gateway.moving_relay import MovingRelay
from router_node.gateway.reply import JSON, Cors, error_reply
from router_node.gateway.tunnel import request_message
from router_node.gateway.wary_relay import WaryRelay
from router_node.middleware.keys import OPEN_CALLER
from router_node.relay import phases
from router_node.relay.account import Account
from router_node.relay.core import RelayCore
from router_node.relay.fields import Fields
from router_node.relay.migrate import ASKED
from router_node.relay.peek import peek
from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.net.api import Headers
from shared.net.exchange import HttpExchange

# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_OPEN_CALLER: Final = OPEN_CALLER
_GET: Final = (b"GET", b"HEAD")
_HEALTH: Final = (b"/healthz", b"/readyz")


class Gateway:
    """The handler of HTTP requests on the public port. ``ready`` says whether some node can serve."""

    __slots__ = ("_core", "_models", "_reader", "_ready")

    def __init__(self, core: RelayCore, ready: Callable[[], bool]) -> None:
        self._core = core
        self._ready = ready
        forward = core.settings.forward_metadata | {names.TRACEPARENT, names.TRACESTATE}
        self._reader = Reader(Cors(core.settings.cors_origins), forward)
        self._models = Models(core.table)

    def handle(self, exchange: HttpExchange) -> None:
        """Answer a request, now or later. Never raises."""
        core = self._core
        since = core.clock()
        asked = self._reader.read(exchange.head)
        if asked.path in _HEALTH and exchange.method in _GET:
            self._health(exchange, asked.path)
            return
        account = Account(core, "http", asked.label, exchange.peer, since)
        account.request_id = asked.request_id or core.ids.next()
        account.bytes_in = len(exchange.body)
        if core.tracer is not None:
            core.tracer.begin(account, asked.headers)
        try:
            if asked.tunnelled and exchange.method == b"POST":
                self._tunnel(exchange, account, asked, since)
            else:
                self._elsewhere(exchange, account, asked)
        except LayaError as error:
            self._refuse(exchange, account, error, asked.extra)
        except Exception as error:
            self._refuse(exchange, account, core.defect(error, account.request_id), asked.extra)

    def gate(self, method: bytes, target: bytes, headers: Headers) -> LayaError | None:
        """Nobody without a key has a large body taken in."""
        core = self._core
        if core.authorizer.open:
            return None
        since = core.clock()
        try:
            core.authorizer.authorize(authorization(headers))
        except LayaError as error:
            path = target.partition(b"?")[0]
            account = Account(core, "http", path.decode() if path in TUNNELLED else OTHER, "-", since)
            account.request_id = core.ids.next()
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

    def _tunnel(self, exchange: HttpExchange, account: Account, asked: Asked, since: float) -> None:
        core, body = self._core, exchange.body
        keys = core.authorizer
        account.caller = _OPEN_CALLER if keys.open else keys.authorize(asked.authorization)
        if not body:
            raise invalid("The body is empty: send a JSON object.")
        self._reader.complete(asked, exchange.head)
        account.keep(len(body))
        fields = Fields()
        fields.session = asked.session
        if asked.priority is not None:
            fields.priority = asked.priority
            fields.named = True
        peek(body, fields, core.settings)
        if asked.timeout != math.inf or core.settings.total:
            fields.deadline = core.loop.time() + phases.longest(account, asked.timeout)
        account.headers = asked.headers
        if core.table.reads_body:
            account.message = body
        message = request_message(asked.opening, body)
        moves = core.migrations
        if moves is None:
            relay = HttpRelay(account, exchange, message, asked.forward, asked.extra)
        elif not fields.streams:
            relay = WaryRelay(account, exchange, message, asked.forward, asked.extra, moves)
        else:
            why = moves.unfit(len(message) + len(body), names.is_set(asked.headers.get(names.NO_MIGRATE)))
            forward = asked.forward if why else [*asked.forward, ASKED]
            relay = MovingRelay(account, exchange, message, forward, asked.extra, moves, why)
        relay.begin(fields, since)

    # Answered here.

    def _elsewhere(self, exchange: HttpExchange, account: Account, asked: Asked) -> None:
        path, headers, extra = asked.path, asked.headers, asked.extra
        allowed: bytes | None = None
        if asked.tunnelled:
            allowed = b"POST"
        elif path == MODELS or path.startswith(MODELS + b"/"):
            account.method = "/v1/models"
            allowed = b"GET, HEAD"
        elif path in _HEALTH:
            account.method = path.decode()
            allowed = b"GET, HEAD"
        if len(exchange.target) > MAX_TARGET:
            text = f"The path and query of a request are limited to {MAX_TARGET} bytes: send less."
            raise LayaError(Code.INVALID_ARGUMENT, "INVALID_REQUEST", text, http_status=414)
        if allowed is None:
            shown = path[:80].decode("ascii", "replace")
            raise LayaError(
                Code.NOT_FOUND, "METHOD_UNKNOWN", f"There is nothing at {shown}: the API is at /v1/, see /v1/models."
            )
        if exchange.method == b"OPTIONS" and self._reader.cors.on and b"access-control-request-method" in headers:
            wanted = headers.get(b"access-control-request-headers", b"")
            answer = self._reader.cors.preflight(headers.get(b"origin", b""), wanted, allowed)
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
            account.caller = self._core.authorizer.authorize(asked.authorization)
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
