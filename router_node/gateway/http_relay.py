"""One OpenAI HTTP request on its way through the tunnel, and its answer on its way back.

The whole request is at hand, so until the client has been sent something it can go to another node. A JSON answer of
up to 256 KiB, of no use to anyone in parts, is kept until it is whole: it leaves in one write with its content-length,
and a node lost half-way through it costs the client nothing. Everything else streams, byte for byte.
"""

from __future__ import annotations

from typing import Final

from router_node.dispatch import Reservation
from router_node.gateway.reply import error_event, error_reply
from router_node.gateway.tunnel import ResponseHead, TunnelReader
from router_node.relay.account import CANCELLED_HTTP, Account, node_lost
from router_node.relay.fields import Fields
from router_node.relay.methods import TUNNEL_PATH
from shared import headers as names
from shared.errors import Code, LayaError
from shared.net.api import CANCEL, INTERNAL_ERROR, PROTOCOL_ERROR, ClientSink, ClientStream, Headers, HttpExchange
from shared.net.grpc_wire import CONTENT_TYPE, error_from_response, error_from_trailers

HOLD: Final = 256 << 10  # bytes of an answer that may be kept until it is whole
_SPLIT: Final = 16 << 10  # a request body above this is not copied into one piece with its head
_NOT_BEGUN: Final = frozenset(("DRAINING", "NOT_READY", "QUEUE_FULL", "QUEUE_TIMEOUT"))

_STATUS: Final = (b":status", b"200")
_GRPC: Final = (b"content-type", CONTENT_TYPE)
_OK: Final = (b"grpc-status", b"0")
_TUNNEL: Final = {b":path": TUNNEL_PATH, b"content-type": CONTENT_TYPE}

_WAITING, _HOLDING, _STREAMING, _OVER = range(4)


class TunnelCall:
    """What every attempt at a request shares. ``message`` is the framed request up to its body."""

    __slots__ = ("account", "exchange", "extra", "fields", "forward", "losses", "message")

    def __init__(
        self, account: Account, exchange: HttpExchange, fields: Fields, message: bytes, forward: Headers, extra: Headers
    ) -> None:
        self.account = account
        self.exchange = exchange
        self.fields = fields
        self.message = message
        self.forward = forward
        self.extra = extra
        self.losses = 0


class HttpRelay(ClientSink):
    """One attempt: a node's stream and the client's exchange. Another attempt is another object."""

    __slots__ = (
        "_account",
        "_call",
        "_exchange",
        "_held",
        "_held_size",
        "_reader",
        "_state",
        "_stream",
        "_tail",
    )

    def __init__(self, call: TunnelCall) -> None:
        self._call = call
        self._account = call.account
        self._exchange = call.exchange
        self._reader = TunnelReader()
        self._stream: ClientStream | None = None
        self._state = _WAITING
        self._held: list[bytes] = []
        self._held_size = 0
        self._tail = b""

    def begin(self, since: float) -> None:
        """Route the request. Raises LayaError when no node can take it; the caller answers then."""
        account = self._account
        self._exchange.on_abort = self._client_gone
        reservation = account.submit(self._call.fields, self._granted, self.refuse)
        if reservation is None:
            account.worked = account.core.clock() - since
        else:
            self._go(reservation, since)

    # To a node.

    def _granted(self, reservation: Reservation) -> None:
        since = self._account.core.clock()
        self._account.granted(reservation)
        self._go(reservation, since)

    def _go(self, chosen: Reservation, since: float) -> None:
        call, account = self._call, self._account
        core = account.core
        reservation: Reservation | None = chosen
        while reservation is not None:
            upstream = reservation.node.upstream
            stream: ClientStream | None = None
            if upstream is not None:
                stream = upstream.open(core.node_headers(_TUNNEL, account, reservation, call.forward), self)
            if stream is not None:
                self._stream = stream
                body = call.exchange.body
                if len(body) > _SPLIT:
                    stream.send(call.message)
                    stream.send(body, end=True)
                else:
                    stream.send(call.message + body, end=True)
                account.sent(since)
                return
            core.metrics.count("node_unreachable")
            reservation = account.another()
        self.refuse(node_lost(account.node_id, "has no connection that can take the request", True))

    def _retry(self, reservation: Reservation) -> None:
        """Go on with another object: late calls for this stream must not reach the next one."""
        successor = HttpRelay(self._call)
        self._exchange.on_abort = successor._client_gone
        self._leave()
        successor._go(reservation, self._account.core.clock())

    def _wait_again(self) -> bool:
        """Wait for a node with room; False when that is not to be."""
        account = self._account
        if account.attempts >= account.core.settings.max_attempts:
            return False
        successor = HttpRelay(self._call)
        try:
            reservation = account.wait_again(successor._granted, successor.refuse)
        except LayaError:
            return False
        self._exchange.on_abort = successor._client_gone
        self._leave()
        if reservation is not None:
            successor._go(reservation, account.core.clock())
        return True

    def _leave(self) -> None:
        """Be done with the node's stream, whatever still comes on it."""
        self._state = _OVER
        stream, self._stream = self._stream, None
        if stream is not None and not stream.closed:
            stream.reset(CANCEL)

    # From the client.

    def _client_gone(self) -> None:
        if self._state == _OVER:
            return
        account = self._account
        account.code = CANCELLED_HTTP
        account.core.metrics.count("client_gone")
        self._leave()
        account.end()

    def _drained(self, n: int) -> None:
        stream = self._stream
        if stream is not None:
            stream.consumed(n)

    # From a node.

    def on_request_sent(self, n: int) -> None:
        """The request was whole before it was sent: nobody waits for this."""

    def on_response(self, headers: Headers, end: bool) -> None:
        """The tunnel's own headers; the application's come as its first message."""
        if self._state == _OVER or (not end and _STATUS in headers and _GRPC in headers):
            return
        error = error_from_trailers(headers) if end else error_from_response(headers)
        if error is None and end:
            error = LayaError(Code.INTERNAL, "NODE_PROTOCOL", "The node ended the call without an answer.")
        if error is not None:
            self._node_failed(error)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Messages of the tunnel: the head first, then body bytes."""
        stream = self._stream
        if stream is None:
            return
        try:
            body = self._reader.feed(data)
        except LayaError as error:
            stream.consumed(len(data))
            self._node_failed(error)
            return
        if self._state == _STREAMING:
            size = len(body)
            stream.consumed(len(data) - size)
            if size:
                self._write(body)
            return
        if self._state == _WAITING:
            head = self._reader.head
            if head is None or not self._answer(head):
                stream.consumed(len(data))
                return
        if self._state == _HOLDING:
            stream.consumed(len(data))
            if body:
                self._hold(body)
            return
        stream.consumed(len(data) - len(body))
        if body:
            self._write(body)

    def on_response_trailers(self, headers: Headers) -> None:
        """The end of the body, or why there is none."""
        if self._state == _OVER:
            return
        error = None if _OK in headers else error_from_trailers(headers)
        if error is None and (self._state == _WAITING or not self._reader.whole):
            error = LayaError(Code.INTERNAL, "NODE_PROTOCOL", "The node ended its answer before it was whole.")
        if error is not None:
            self._node_failed(error)
            return
        state, self._state = self._state, _OVER
        if state == _HOLDING:
            self._respond()
        else:
            self._exchange.finish()
        self._account.end()

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The node's stream is over; too early, unless everything came."""
        self._stream = None
        if self._state == _OVER:
            return
        call, account = self._call, self._account
        account.core.metrics.count("node_lost")
        call.losses += 1
        untouched = self._state != _STREAMING
        if untouched and call.losses == 1 and (unprocessed or code == CANCEL):
            reservation = account.another()
            if reservation is not None:
                self._retry(reservation)
                return
        if code in (PROTOCOL_ERROR, INTERNAL_ERROR):
            what = f"reset the call with HTTP/2 error {code}"
            self.refuse(node_lost(account.node_id, what, False, Code.INTERNAL))
        else:
            what = "was lost before the answer began" if untouched else "was lost in the middle of the answer"
            self.refuse(node_lost(account.node_id, what, untouched))

    # To the client.

    def _answer(self, head: ResponseHead) -> bool:
        """Begin the answer; False when the request went on to another node instead."""
        account = self._account
        if head.status in (429, 503) and self._elsewhere(head):
            return False
        account.code = head.status
        if head.json:  # of no use before it is whole
            self._state = _HOLDING
        else:
            self._start(head)
        return True

    def _elsewhere(self, head: ResponseHead) -> bool:
        account = self._account
        if head.status == 429:
            account.refused(head.retry_after)
        reservation = account.another()
        if reservation is not None:
            self._retry(reservation)
            return True
        return head.status == 429 and self._wait_again()

    def _head(self, head: ResponseHead) -> Headers:
        account = self._account
        return [
            *head.headers,
            (names.REQUEST_ID, account.request_id),
            (names.NODE, account.node_id.encode()),
            (names.ROUTER_TIME, b"%d" % (account.routed * 1e6)),
            *self._call.extra,
        ]

    def _start(self, head: ResponseHead) -> None:
        self._state = _STREAMING
        exchange = self._exchange
        exchange.on_drain = self._drained
        exchange.start(head.status, self._head(head))

    def _hold(self, body: bytes) -> None:
        self._held.append(body)
        self._held_size += len(body)
        head = self._reader.head
        if self._held_size > HOLD and head is not None:
            self._start(head)
            for part in self._held:
                self._exchange.write(part)
            self._account.bytes_out = self._held_size
            self._held = []

    def _respond(self) -> None:
        head = self._reader.head
        held = self._held
        if head is not None:
            body = held[0] if len(held) == 1 else b"".join(held)
            self._account.bytes_out = len(body)
            self._exchange.respond(head.status, self._head(head), body)

    def _write(self, body: bytes) -> None:
        self._account.bytes_out += len(body)
        self._tail = body
        self._exchange.write(body)

    def _node_failed(self, error: LayaError) -> None:
        """The node said why it cannot answer, or said nothing that makes sense."""
        account = self._account
        if self._state != _STREAMING:
            if error.code == Code.RESOURCE_EXHAUSTED:
                account.refused(error.retry_after)
            if error.code == Code.RESOURCE_EXHAUSTED or (error.code == Code.UNAVAILABLE and error.reason in _NOT_BEGUN):
                reservation = account.another()
                if reservation is not None:
                    self._retry(reservation)
                    return
                if error.code == Code.RESOURCE_EXHAUSTED and self._wait_again():
                    return
        self.refuse(error)

    def refuse(self, error: LayaError) -> None:
        """End the request with an error in the form that what was sent before allows."""
        if self._state == _OVER:
            return
        exchange, account = self._exchange, self._account
        account.failed(error, http=True)
        state = self._state
        self._leave()
        if state != _STREAMING:
            error_reply(exchange, error, account.request_id, self._call.extra)
        elif self._reader.head is not None and self._reader.head.events:
            exchange.write(error_event(error, self._tail))
            exchange.finish()
        else:
            exchange.abort()
        account.end()
