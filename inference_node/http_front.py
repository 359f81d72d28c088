"""The node's plain HTTP, on the same port as its gRPC.

``/v1/*``, ``/tokenize`` and ``/detokenize`` go through the same admission as the tunnel; ``/metrics``, ``/healthz``,
``/readyz`` and ``/health`` are for whoever watches the machine and need no token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from inference_node.auth import ClusterAuth
from inference_node.bodies import error_body
from inference_node.call import Call
from inference_node.metrics import CONTENT_TYPE, NodeMetrics
from inference_node.state import NodeState
from inference_node.tunnel import OpenAIFront
from inference_node.web import WebReply, WebRequest
from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.ids import request_ids, sane_request_id
from shared.logging import event
from shared.net.api import Headers, HttpExchange

HIGH_WATER, LOW_WATER = 64 << 10, 32 << 10  # bytes queued at which an application waits, and at which it goes on
_JSON: Headers = [(b"content-type", b"application/json")]


class HttpFront:
    """An HttpHandler; owns one task for each OpenAI request."""

    def __init__(
        self, state: NodeState, front: OpenAIFront, auth: ClusterAuth, metrics: NodeMetrics, log: logging.Logger
    ) -> None:
        self._state = state
        self._front = front
        self._auth = auth
        self._metrics = metrics
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._make_id = request_ids().next
        self._pages: dict[bytes, Callable[[HttpExchange], None]] = {
            b"/healthz": self._health,
            b"/readyz": self._ready,
            b"/health": self._ready,  # where HTTP routers look for an engine's health by default
            b"/metrics": self._exposition,
        }

    @property
    def running(self) -> int:
        """Requests being answered."""
        return len(self._tasks)

    def handle(self, exchange: HttpExchange) -> None:
        """Answer one exchange."""
        page = self._pages.get(exchange.target.partition(b"?")[0])
        if page is not None:
            if exchange.method in (b"GET", b"HEAD"):
                page(exchange)
            else:
                error = LayaError(Code.INVALID_ARGUMENT, "METHOD_UNKNOWN", "This page takes GET.", http_status=405)
                exchange.respond(*error_body(error))
            return
        task = asyncio.get_running_loop().create_task(self._serve(exchange), name="http-request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def abort() -> None:
            task.cancel()

        exchange.on_abort = abort

    async def close(self) -> None:
        """Cancel what still runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)

    async def _serve(self, exchange: HttpExchange) -> None:
        fields = dict(exchange.headers)
        given = fields.get(names.REQUEST_ID)
        request_id = given if given is not None and sane_request_id(given) else self._make_id()
        reply = _ExchangeReply(exchange, request_id)
        try:
            self._auth.check(fields)
            if fields.get(b"content-encoding", b"identity") != b"identity":
                raise LayaError(
                    Code.INVALID_ARGUMENT, "INVALID_REQUEST", "Send the body without content-encoding.", http_status=415
                )
            call = Call(fields, request_id.decode())
            await self._front.serve(self._request(exchange), call, reply)
        except LayaError as e:
            if reply.begun:
                exchange.abort()
            else:
                status, headers, body = error_body(e)
                exchange.respond(status, [*headers, (names.REQUEST_ID, request_id)], body)
        except asyncio.CancelledError:
            exchange.abort()
            raise
        except Exception as e:
            event(self._log, logging.ERROR, "http_request_failed", exc_info=e, request_id=request_id.decode())
            exchange.abort()

    def _request(self, exchange: HttpExchange) -> WebRequest:
        try:
            target = exchange.target.decode("ascii")
        except UnicodeDecodeError:
            raise invalid("The path holds bytes that are not ASCII.") from None
        return WebRequest(exchange.method.decode("latin-1"), target, exchange.headers, exchange.body)

    def _health(self, exchange: HttpExchange) -> None:
        exchange.respond(200, _JSON, b'{"status":"ok"}')

    def _ready(self, exchange: HttpExchange) -> None:
        state = self._state
        serving = state.serving_or_none
        if state.ready and (serving is None or not serving.admission.closed_reason):
            exchange.respond(200, _JSON, b'{"status":"ready"}')
            return
        why = "The model is still loading."
        if state.failed.is_set():
            why = "The engine has failed."
        elif state.draining:
            why = "The node is draining."
        elif serving is not None:
            why = f"The node sheds load: {serving.admission.closed_reason}."
        exchange.respond(503, [*_JSON, (b"retry-after", b"1")], msgspec.json.encode({"status": why}))

    def _exposition(self, exchange: HttpExchange) -> None:
        exchange.respond(200, [(b"content-type", CONTENT_TYPE)], self._metrics.exposition())


class _ExchangeReply(WebReply):
    """Writes to an exchange; an answer that is whole at once goes out with its length."""

    __slots__ = ("_begun", "_drained", "_exchange", "_head", "_request_id")

    def __init__(self, exchange: HttpExchange, request_id: bytes) -> None:
        self._exchange = exchange
        self._request_id = request_id
        self._head: tuple[int, Headers] | None = None
        self._begun = False
        self._drained = asyncio.Event()
        exchange.on_drain = self._on_drain

    @property
    def begun(self) -> bool:
        return self._begun

    async def head(self, status: int, headers: Headers) -> None:
        self._begun = True
        self._head = status, [*headers, (names.REQUEST_ID, self._request_id)]

    async def body(self, data: bytes, last: bool) -> None:
        exchange = self._exchange
        head, self._head = self._head, None
        if head is not None:
            if last:
                exchange.respond(*head, data)
                return
            exchange.start(*head)
        if data:
            exchange.write(data)
        if last:
            exchange.finish()
        elif exchange.queued > HIGH_WATER:
            self._drained.clear()
            await self._drained.wait()

    def _on_drain(self, n: int) -> None:
        if self._exchange.queued <= LOW_WATER:
            self._drained.set()
