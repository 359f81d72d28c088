"""One gRPC call on its way through the router.

The call is routed by its metadata as soon as its headers are here, or by its first message once that is whole. DATA
then passes untouched between the two streams. What can go wrong with a node before the client has seen anything is
mended here: a request that a node gave back, refused for lack of room, or took down with its connection is sent to
another one, as long as all of it is still in the splice's replay buffer.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from router_node.dispatch import Reservation
from router_node.relay import phases
from router_node.relay.account import Account
from router_node.relay.faults import FAULTY, lost, no_connection, no_room, nonsense, not_begun, status_code, too_large
from router_node.relay.fields import Fields
from router_node.relay.headers import response_for_client, trailers_for_client
from router_node.relay.methods import Method
from router_node.relay.retries import is_free, later, pause, pushback
from shared.errors import Code, LayaError, invalid
from shared.net.api import CANCEL, Headers, ServerStream
from shared.net.grpc_wire import Deframer, error_from_response, error_from_trailers, format_timeout
from shared.net.splice import Splice
from shared.net.uploads import crowded_error, stalled_error

_STATUSES: Final = frozenset(b"%d" % code for code in Code)
_STATUS_200: Final = (b":status", b"200")


class RelayStream(Splice):
    """A dispatched call. ``fields`` are its checked headers by name, ``forward`` those that pass to a node."""

    __slots__ = (
        "_account",
        "_ask",
        "_deframer",
        "_fields",
        "_forward",
        "_method",
        "_offered",
        "_reading",
    )

    def __init__(
        self,
        down: ServerStream,
        account: Account,
        fields: dict[bytes, bytes],
        forward: Headers,
        method: Method,
        ask: Fields,
    ) -> None:
        super().__init__(down)
        self._account = account
        self._fields = fields
        self._forward = forward
        self._method = method
        self._ask = ask
        self._reading = False
        self._deframer: Deframer | None = None
        self._offered: tuple[Headers, LayaError] | None = None  # a node's refusal, while another node is looked for

    def begin(self, end: bool, since: float) -> None:
        """Route the call, or wait for its first message. ``end``: the request has no body.

        Raises LayaError when it cannot be taken; the caller answers then.
        """
        ask, core = self._ask, self._account.core
        given = self._fields.get(b"grpc-timeout")
        if given is not None or core.total:
            asked = core.parse_timeout(given) if given is not None else math.inf
            limit = phases.longest(self._account, asked)
            ask.deadline = when = core.loop.time() + limit
            core.deadlines.put(self, when)
            if limit < asked:
                self._forward = self._less_time(self._forward)
        if ask.complete and (end or not core.table.reads_body):
            self.request_ended = end
            self._submit(since)
            return
        if end:
            raise invalid("The request ended without a message: send one.")
        self._reading = True
        self._limit_reading()
        self._account.worked = core.clock() - since

    # The client's side.

    def on_data(self, data: bytes, end: bool) -> None:
        """Request bytes; the first message is read on its way where metadata did not say enough."""
        super().on_data(data, end)
        if self._reading:
            since = self._account.core.clock()
            try:
                self._read(data, end, since)
            except LayaError as error:
                self.refuse(error)
            except Exception as error:
                self.refuse(self._account.core.defect(error, self._account.request_id))

    def _limit_reading(self) -> None:
        """The first message must come in time, whatever time the call itself has."""
        core = self._account.core
        limit = core.loop.time() + core.settings.body_timeout
        if self._ask.deadline is None or self._ask.deadline > limit:
            core.deadlines.put(self, limit)

    def _read(self, data: bytes, end: bool, since: float) -> None:
        core = self._account.core
        most = core.settings.max_scan_bytes
        size = max(0, len(data) - 5)
        if self._deframer is None and size <= most and data[:5] == b"\0" + size.to_bytes(4, "big"):
            self._route(data[5:], since)  # one message, whole and plain, as nearly always
            return
        try:
            message = self._collect(data, most)
        except LayaError as error:
            if error.reason != "BODY_TOO_LARGE":
                raise
            if not self._ask.model:
                raise too_large(most) from None
            self._route(b"", since)  # metadata names the model: that must do
            return
        if message is not None:
            self._route(message, since)
        elif end:
            raise invalid("The request ended in the middle of its first message: send it whole.")
        else:
            self.ask_more(len(data))  # a message may be longer than the client's window
            core.uploads.progress(self, 2 * self.bytes_in)  # here, and in the splice

    def _collect(self, data: bytes, most: int) -> bytes | None:
        """The first message once all of it is here. Raises LayaError."""
        if self._deframer is None:
            self._deframer = Deframer(most, self._fields.get(b"grpc-encoding", b"identity"))
        return next(iter(self._deframer.feed(data)), None)

    def _route(self, message: bytes, since: float) -> None:
        """Choose a node by what the message says. Raises LayaError."""
        self._read_enough()
        ask, core = self._ask, self._account.core
        if ask.deadline is None:
            core.deadlines.live.pop(self, None)
        else:
            core.deadlines.put(self, ask.deadline)
        core.metrics.count("scan")
        if message:
            self._method.read(message, ask, core.settings)
            if core.table.reads_body:
                self._account.message = message
        self._submit(since)

    def _read_enough(self) -> None:
        self._reading = False
        if self._deframer is not None:
            self._deframer = None
            self._account.core.uploads.end(self)

    def stalled(self) -> None:
        """The first message did not go on in time."""
        self.refuse(stalled_error())

    def crowded_out(self) -> None:
        """First messages are too much together, and this is one of the largest."""
        self._account.core.metrics.count("uploads_full")
        self.refuse(crowded_error())

    def on_trailers(self, headers: Headers) -> None:
        """A request has none in gRPC: what comes in their place is its end, and goes no further."""
        self.on_data(b"", True)

    def on_deadline(self) -> None:
        """Some time limit may be over: the whole call's, a phase's, or that of its first message."""
        account, ask = self._account, self._ask
        core = account.core
        now = core.loop.time()
        if self._reading and (ask.deadline is None or now < ask.deadline):
            self.refuse(phases.no_message(core.settings.body_timeout))
            return
        error = phases.overdue(account, ask, self.bytes_out, self.down.queued > 0, now)
        if error is not None:
            self.refuse(error)
        elif account.look_at < math.inf:
            core.deadlines.put(self, account.look_at)

    def refuse(self, error: LayaError) -> None:
        """End the call with an error, on both sides."""
        if not self.complete and not self.down.closed:
            self._read_enough()
            self._account.failed(error)
            self._account.release()
            self.fail(error)

    # To a node.

    def _submit(self, since: float) -> None:
        account = self._account
        reservation = account.submit(self._ask, self._on_grant, self.refuse)
        if account.plan is not None and account.plan.timeout:
            self._limit_time()
        if reservation is not None:
            self._go(reservation, since)
        else:
            account.worked += account.core.clock() - since

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
        forward = self._forward
        if chosen.waited > 0 or account.attempts > 1:
            forward = self._less_time(forward)
        reservation: Reservation | None = chosen
        while reservation is not None:
            upstream = reservation.node.upstream
            if upstream is not None:
                headers = account.core.node_headers(self._fields, account, reservation, forward)
                if self.join(upstream, headers):
                    account.sent(since)
                    if self._method.streams:
                        self._await_answer()
                    return
            account.core.metrics.count("node_unreachable")
            reservation = account.another(True)
        self.refuse(no_connection(account.node_id))

    def _await_answer(self) -> None:
        """The first token and each further one must come in time."""
        core = self._account.core
        if core.settings.first_token or core.settings.between_tokens:
            core.deadlines.put(self, phases.begin(self._account, self._ask, core.loop.time()))

    def _less_time(self, forward: Headers) -> Headers:
        """The node gets the time that is left, not what there was before the wait."""
        deadline = self._ask.deadline
        if deadline is None:
            return forward
        left = format_timeout(deadline - self._account.core.loop.time())
        return [*(pair for pair in forward if pair[0] != b"grpc-timeout"), (b"grpc-timeout", left)]

    def _limit_time(self) -> None:
        """The rule's time for a call may be shorter than the client's; the node is told of it too."""
        core, deadline = self._account.core, self._ask.deadline
        if deadline is not None:
            core.deadlines.put(self, deadline)
            self._forward = self._less_time(self._forward)

    # From a node.

    def filter_response(self, headers: Headers) -> Headers:
        """Drop what is not for the client, add who answered."""
        account = self._account
        account.answer_begins(self._method.streams)
        out = response_for_client(headers, account.node_id, account.request_id, account.routed)
        account.mark(out)
        return out

    def filter_trailers(self, headers: Headers) -> Headers:
        """Drop what is not for the client. A status that is none would be a riddle for it."""
        self._account.answer_ends()
        if self.grpc_status in _STATUSES:
            if self.grpc_status in FAULTY:
                self._account.node_failed()
            return trailers_for_client(headers)
        error = self._nonsense("a status that is none")
        self._account.failed(error)
        return error.grpc_trailers()

    def ended_bare(self, data: bytes) -> None:
        """The node's answer ended without a status."""
        self.down.send(data)
        self.refuse(self._nonsense("no status"))

    def first_byte(self) -> None:
        """The node's answer begins."""
        if self._method.streams:
            self._account.answered()

    def _nonsense(self, what: str) -> LayaError:
        self._account.node_failed()
        return nonsense(self._account.node_id, what)

    def on_response(self, headers: Headers, end: bool) -> None:
        """Response headers. An error that is the node's whole answer may be one that another node would not give."""
        if headers[0] != _STATUS_200:
            odd = error_from_response(headers) or self._nonsense("another HTTP status")
            self._account.node_failed()
            self.refuse(LayaError(odd.code, "NODE_PROTOCOL", odd.message))
            return
        if end:
            self._take_status(headers)
            if self.grpc_status not in _STATUSES:
                self.refuse(self._nonsense("a status that is none"))
                return
            error = error_from_trailers(headers)
            if error is not None and self._elsewhere(error) and pushback(headers) >= 0:
                self._offered = (headers, error)
                if self.up is not None:
                    self.up.reset(CANCEL)  # it ends at the close of this batch, and then the other node is asked
                return
        super().on_response(headers, end)

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The node's stream is over."""
        offered, self._offered = self._offered, None
        if offered is None or self.complete or self.down.closed:
            super().on_response_closed(code, unprocessed)
            return
        self.up = None
        headers, error = offered
        if no_room(error):
            self._account.refused(error.retry_after)
        self._account.node_blameless()
        self._offer_elsewhere(headers, error, pushback(headers))

    def _offer_elsewhere(self, headers: Headers, error: LayaError, wait: float) -> None:
        if wait > 0 and self.can_replay:
            later(self._account, wait, partial(self._offer_elsewhere, headers, error, 0.0))
        elif not self.can_replay or not self._again(error):
            self.upstream_closed()
            super().on_response(headers, True)

    def _elsewhere(self, error: LayaError) -> bool:
        """Whether the node gave the request back unbegun, and all of it is still here."""
        return not_begun(error) and (bool(self.early_data()) or self.request_ended)

    def _again(self, error: LayaError) -> bool:
        """Try another node, or wait for one; False when the node's answer is all there is to say."""
        account = self._account
        since = self._account.core.clock()
        reservation = account.another(is_free(error))
        if reservation is None:
            if account.attempts >= account.max_attempts:
                return False
            try:
                reservation = account.wait_again(self._on_grant, lambda _: self.refuse(error))
            except LayaError:
                return False
            if reservation is None:
                return True
        self._go(reservation, since)
        return True

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        """The node's stream ended early. Before the first response byte the request goes to another node."""
        account = self._account
        account.node_lost(unprocessed)
        may_repeat = unprocessed or (code == CANCEL and not account.once)
        if not self.responded and self.can_replay and may_repeat and account.attempts < account.max_attempts:
            wait = pause(account)
            if wait > 0:
                later(account, wait, partial(self._resume, code, unprocessed))
            else:
                self._resume(code, unprocessed)
        else:
            self.refuse(lost(account.node_id, code, self.bytes_out, not self.responded))

    def _resume(self, code: int, unprocessed: bool) -> None:
        account = self._account
        since = account.core.clock()
        reservation = account.another(unprocessed) or (account.once_more() if unprocessed else None)
        if reservation is not None:
            self._go(reservation, since)
        else:
            self.refuse(lost(account.node_id, code, self.bytes_out, not self.responded))

    def upstream_closed(self) -> None:
        """The node is done with the call: its place there is free."""
        self._account.release()

    def finished(self, code: int) -> None:
        """Both streams are over."""
        account = self._account
        core = account.core
        if self._reading:
            self._read_enough()
        core.deadlines.live.pop(self, None)
        account.bytes_in, account.bytes_out = self.bytes_in, self.bytes_out
        if account.code == 0:
            if not self.complete:
                account.code = int(Code.CANCELLED)
                account.node_blameless()
                core.metrics.count("client_gone")
            elif self.grpc_status != b"0":
                account.code = status_code(self.grpc_status)
        account.end()
