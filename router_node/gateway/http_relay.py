"""One OpenAI HTTP request on its way through the tunnel, and its answer on its way back.

The whole request is at hand, so until the client has been sent something it can go to another node. A JSON answer of
up to 256 KiB, of no use to anyone in parts, is kept until it is whole: it leaves in one write with its content-length,
and a node lost half-way through it costs the client nothing. So is the head of a stream of events until the first of
them. Everything else streams, byte for byte.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from router_node.dispatch import Reservation
from router_node.gateway.reply import answer_headers, error_event, error_reply
from router_node.gateway.tunnel import ResponseHead, TunnelReader
from router_node.relay import phases
from router_node.relay.account import CANCELLED_HTTP, Account
from router_node.relay.faults import is_fault, lost, no_connection, no_room, nonsense, not_begun
from router_node.relay.fields import Fields
from router_node.relay.methods import TUNNEL_PATH
from router_node.relay.retries import is_free, later, pause, pushback
from shared.errors import Code, LayaError
from shared.net.api import CANCEL, ClientStream, Headers
from shared.net.exchange import HttpExchange
from shared.net.grpc_wire import CONTENT_TYPE, error_from_response, error_from_trailers, format_timeout

HOLD: Final = 256 << 10  # bytes of an answer that may be kept until it is whole
_SPLIT: Final = 16 << 10  # a request body above this is not copied into one piece with its head

_STATUS: Final = (b":status", b"200")
_GRPC: Final = (b"content-type", CONTENT_TYPE)
_OK: Final = (b"grpc-status", b"0")
_NO_FIELDS: Final = Fields()  # until it begins
TUNNEL: Final = {b":path": TUNNEL_PATH, b"content-type": CONTENT_TYPE}

WAITING: Final = 0
HEADED: Final = 1  # the head of a stream of events is here, which says nothing to anyone before the first of them
HOLDING: Final = 2
STREAMING: Final = 3  # from here on there is no other try
OVER: Final = 4


class HttpRelay:
    """One attempt at a request: the ``ClientSink`` of a node's stream. Another attempt is another object.

    ``message`` is the framed request up to its body, ``forward`` the client's headers that pass to the node, ``extra``
    headers of every answer.
    """

    __slots__ = (
        "_account", "_exchange", "_extra", "_fields", "_forward", "_held", "_message", "_reader", "_state", "_stream",
        "_tail",
    )  # fmt: skip

    def __init__(
        self, account: Account, exchange: HttpExchange, message: bytes, forward: Headers, extra: Headers
    ) -> None:
        self._account = account
        self._exchange = exchange
        self._message = message
        self._forward = forward
        self._extra = extra
        self._fields = _NO_FIELDS
        self._reader = TunnelReader()
        self._stream: ClientStream | None = None
        self._held: list[bytes] | None = None
        self._tail = b""
        self._state = WAITING

    def begin(self, fields: Fields, since: float) -> None:
        """Route the request. Raises LayaError when no node can take it; the caller answers then."""
        account = self._account
        self._exchange.on_abort = self._client_gone
        self._fields = fields
        reservation = account.submit(fields, self._on_grant, self.refuse)
        if reservation is None:
            account.worked = account.core.clock() - since
            self._look_at(fields.deadline)
        else:
            self._go(reservation, since)

    # To a node.

    def _on_grant(self, reservation: Reservation) -> None:
        """The dispatcher found room after a wait. Its caller has no part in what goes wrong here."""
        account = self._account
        since = account.core.clock()
        account.granted(reservation)
        try:
            self._go(reservation, since)
        except Exception as error:
            self.refuse(account.core.defect(error, account.request_id))

    def _go(self, chosen: Reservation, since: float) -> None:
        """Open the node's stream; where that node has no connection, another one's."""
        account = self._account
        reservation: Reservation | None = chosen
        while reservation is not None:
            upstream = reservation.node.upstream
            if upstream is not None:
                headers = account.core.node_headers(TUNNEL, account, reservation, self._forward)
                deadline = self._fields.deadline
                if deadline is not None:
                    headers.append((b"grpc-timeout", format_timeout(deadline - account.core.loop.time())))
                stream: ClientStream | None = upstream.open(headers, self)
                if stream is not None:
                    self._stream = stream
                    body = self._exchange.body
                    if len(body) > _SPLIT:
                        stream.send(self._message)
                        stream.send(body, True)
                    else:
                        stream.send(self._message + body, True)
                    account.sent(since)
                    if deadline is not None or self._fields.streams:
                        self._await_answer()
                    return
            account.core.metrics.count("node_unreachable")
            reservation = account.another(True)
        self.refuse(no_connection(account.node_id))

    def _successor(self) -> HttpRelay:
        """Another attempt: late calls for this one's stream must not reach it."""
        made = HttpRelay(self._account, self._exchange, self._message, self._forward, self._extra)
        made._fields = self._fields
        return made

    # Time limits.

    def _look_at(self, when: float | None) -> None:
        if when is not None and when < math.inf and self._state != OVER:
            self._account.core.deadlines.put(self, when)

    def _await_answer(self) -> None:
        fields, account = self._fields, self._account
        self._look_at(phases.begin(account, fields, account.core.loop.time()) if fields.streams else fields.deadline)

    def on_deadline(self) -> None:
        """Some time limit may be over, the whole request's or a phase's."""
        account = self._account
        held_up = self._state == STREAMING and self._exchange.queued > 0
        error = phases.overdue(account, self._fields, account.bytes_out, held_up, account.core.loop.time())
        if error is not None:
            self.refuse(error)
        else:
            self._look_at(account.look_at)

    def _retry(self, reservation: Reservation) -> None:
        successor = self._successor()
        self._exchange.on_abort = successor._client_gone
        self._leave()
        successor._go(reservation, self._account.core.clock())

    def _wait_again(self) -> bool:
        """Wait for a node with room; False when that is not to be."""
        account = self._account
        if account.attempts >= account.max_attempts:
            return False
        successor = self._successor()
        try:
            reservation = account.wait_again(successor._on_grant, successor.refuse)
        except LayaError:
            return False
        self._exchange.on_abort = successor._client_gone
        self._leave()
        if reservation is not None:
            successor._go(reservation, account.core.clock())
        else:
            successor._look_at(self._fields.deadline)
        return True

    def _leave(self) -> None:
        """Be done with the node's stream, whatever still comes on it."""
        self._state = OVER
        self._account.core.deadlines.live.pop(self, None)
        stream, self._stream = self._stream, None
        if stream is not None and not stream.closed:
            stream.reset(CANCEL)

    # From the client.

    def _client_gone(self) -> None:
        if self._state == OVER:
            return
        account = self._account
        account.code = CANCELLED_HTTP
        account.node_blameless()
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
        if self._state == OVER or (not end and _STATUS in headers and _GRPC in headers):
            return
        error = error_from_trailers(headers) if end else error_from_response(headers)
        if error is None and end:
            error = LayaError(Code.INTERNAL, "NODE_PROTOCOL", "The node ended the call without an answer.")
        if error is not None:
            self._node_failed(error, pushback(headers))

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Messages of the tunnel: the head first, then body bytes."""
        stream = self._stream
        if stream is None:
            return
        size = len(data)
        try:
            body = self._reader.feed(data)
        except LayaError as error:
            stream.consumed(size)
            self._node_failed(error)
            return
        if self._state <= HEADED and not self._ready(body):
            stream.consumed(size)
            return
        if self._state == STREAMING:
            size -= len(body)  # the body's own bytes are acknowledged once the client has taken them
            if body:
                if not self._account.bytes_out:
                    self._account.answered()
                self._account.bytes_out += len(body)
                self._tail = body
                self._exchange.write(body)
        elif body:
            self._hold(body)
        stream.consumed(size)

    def _ready(self, body: bytes) -> bool:
        """Whether there is an answer that the body's bytes belong to."""
        head = self._reader.head
        if head is None or (self._state == WAITING and not self._answer(head)):
            return False
        if self._state == HEADED and body:
            self._start(head)
        return True

    def on_response_trailers(self, headers: Headers) -> None:
        """The end of the body, or why there is none."""
        self._account.answer_ends()
        state = self._state
        if state == OVER:
            return
        reader = self._reader
        error = None if _OK in headers else error_from_trailers(headers)
        if error is None and (state == WAITING or not reader.whole):
            error = LayaError(Code.INTERNAL, "NODE_PROTOCOL", "The node ended its answer before it was whole.")
        if error is not None:
            self._node_failed(error, pushback(headers))
            return
        if state == HEADED and reader.head is not None:
            self._start(reader.head)
        self._state = OVER
        self._account.core.deadlines.live.pop(self, None)
        if state == HOLDING and reader.head is not None:
            held = self._held
            body = b"" if held is None else held[0] if len(held) == 1 else b"".join(held)
            self._account.bytes_out = len(body)
            self._exchange.respond(
                reader.head.status, answer_headers(reader.head.headers, self._account, self._extra), body
            )
        else:
            self._exchange.finish()
        self._account.end()

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The node's stream is over; too early, unless everything came."""
        self._stream = None
        if self._state == OVER:
            return
        account = self._account
        account.node_lost(unprocessed)
        untouched = self._state != STREAMING
        error = lost(account.node_id, code, 0 if untouched else account.bytes_out, untouched)
        may_repeat = unprocessed or (code == CANCEL and not account.once)
        if untouched and may_repeat and account.attempts < account.max_attempts:
            self._later(pause(account), error, unprocessed)
        else:
            self.refuse(error)

    def _later(self, wait: float, error: LayaError, free: bool) -> None:
        """Try another node in so many seconds; ``error`` is the answer if there is none."""
        account = self._account
        successor = self._successor()
        self._exchange.on_abort = successor._client_gone
        self._leave()
        if wait > 0:
            successor._look_at(self._fields.deadline)
            later(account, wait, partial(successor._resume, error, free))
        else:
            successor._resume(error, free)

    def _resume(self, error: LayaError, free: bool) -> None:
        account = self._account
        reservation = account.another(free) or (account.once_more() if free and not no_room(error) else None)
        if reservation is not None:
            self._go(reservation, account.core.clock())
        elif not no_room(error) or not self._wait_again():
            self.refuse(error)

    # To the client.

    def _answer(self, head: ResponseHead) -> bool:
        """Begin the answer; False when the request went on to another node instead."""
        status = head.status
        self._account.answer_begins(not head.json)
        if (status == 429 or status == 503) and self._elsewhere(head):
            return False
        self._account.code = status
        if status == 500:
            self._account.node_failed()
        if head.json:  # of no use before it is whole
            self._state = HOLDING
        elif head.events and self._account.trip is None:  # with a journal it goes on elsewhere in any case
            self._state = HEADED
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

    def _start(self, head: ResponseHead) -> None:
        self._state = STREAMING
        exchange = self._exchange
        exchange.body = b""  # there is no other try from here on
        self._account.let_go()
        exchange.on_drain = self._drained
        exchange.start(head.status, answer_headers(head.headers, self._account, self._extra))

    def _hold(self, body: bytes) -> None:
        held = self._held
        if held is None:
            self._held = [body]
            return
        held.append(body)
        account, head = self._account, self._reader.head
        account.bytes_out = size = sum(map(len, held))
        if size > HOLD and head is not None:
            self._held = None
            self._start(head)
            for part in held:
                self._exchange.write(part)

    def _node_failed(self, error: LayaError, wait: float = 0.0) -> None:
        """The node said why it cannot answer, or said nothing that makes sense. ``wait`` is its pushback in seconds."""
        account = self._account
        if self._state != STREAMING and not_begun(error) and wait >= 0:
            if no_room(error):
                account.refused(error.retry_after)
            account.node_blameless()
            if account.attempts < account.max_attempts:
                self._later(wait, error, is_free(error))
                return
        if is_fault(error):
            account.node_failed()
            if error.reason in ("UNKNOWN", "NO_STATUS"):
                error = nonsense(account.node_id, "no status that says anything")
        if (error.metadata or {}).get("phase") == "total":  # the node counts down the time that it was given
            error = phases.total(account, account.bytes_out)
        self.refuse(error)

    def refuse(self, error: LayaError) -> None:
        """End the request with an error in the form that what was sent before allows."""
        if self._state == OVER:
            return
        exchange, account, head = self._exchange, self._account, self._reader.head
        account.failed(error, http=True)
        state = self._state
        self._leave()
        if state != STREAMING:
            error_reply(exchange, error, account.request_id, self._extra)
        elif head is not None and head.events:
            exchange.write(error_event(error, self._tail))
            exchange.finish()
        else:
            exchange.abort()
        account.end()
