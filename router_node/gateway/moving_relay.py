"""A streamed OpenAI answer that can go on elsewhere when its node is lost.

Until a node grants a journal this is a ``WaryRelay`` and nothing else. From then on the tunnel's messages are read
whole, their token ids are taken down, and their body bytes go to the client as they are; another node replays what was
passed on and sends what follows (``router_node.relay.trip``).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from router_node.dispatch import Reservation
from router_node.gateway.http_relay import HOLDING, OVER, STREAMING, TUNNEL, WAITING, HttpRelay
from router_node.gateway.tunnel import ResponseHead, read_head
from router_node.gateway.wary_relay import WaryRelay
from router_node.relay.account import Account
from router_node.relay.flow import EARLY
from router_node.relay.journal import TunnelJournal
from router_node.relay.migrate import ASKED, FULL, MIGRATABLE, Migrations, journal_value, stays
from router_node.relay.trip import Trip
from shared import headers as names
from shared.errors import Code, LayaError
from shared.net.api import CANCEL, ClientStream, Headers
from shared.net.exchange import HttpExchange
from shared.net.grpc_wire import error_from_trailers, format_timeout

_OK: Headers = [(b"grpc-status", b"0")]
_SHORT: Final = 512  # bytes of a head that may be remembered
_known = lru_cache(256)(read_head)


class MovingRelay(WaryRelay):
    """See the module. ``why`` no journal is asked for, or it is empty and ``forward`` asks for one."""

    __slots__ = ("_journal", "_note", "_trip", "_why")

    def __init__(
        self,
        account: Account,
        exchange: HttpExchange,
        message: bytes,
        forward: Headers,
        extra: Headers,
        moves: Migrations,
        why: str,
    ) -> None:
        super().__init__(account, exchange, message, forward, extra, moves)
        self._why = why  # why the answer cannot go on elsewhere, where somebody said so
        self._trip: Trip | None = None
        self._journal: TunnelJournal | None = None  # the trip's, while everything is taken down
        self._note = b""  # what the client is told of that

    def _successor(self) -> HttpRelay:
        """Another try of all of it."""
        trip = self._trip
        if trip is not None:
            trip.close()
            self._account.trip = self._trip = self._journal = None
        why = "" if ASKED in self._forward else self._why
        made = MovingRelay(self._account, self._exchange, self._message, self._forward, self._extra, self._moves, why)
        made._fields = self._fields
        return made

    # The first node's answer.

    def on_response(self, headers: Headers, end: bool) -> None:
        """The first node's headers may grant a journal; a later node's say whether it goes on with the answer."""
        trip = self._trip
        if trip is not None and trip.moving and self._state != OVER:
            if not trip.answers(headers, end):
                self._move(trip, False)
            return
        if not end and self._state == WAITING and trip is None:
            value = journal_value(headers)
            if self._why:
                self._note = self._moves.note(self._why)
            elif value:
                self._consider(value)
        super().on_response(headers, end)

    def _consider(self, value: bytes) -> None:
        moves, account, body = self._moves, self._account, self._exchange.body
        why = moves.refusal(value, len(self._message) + len(body))
        if not why:
            request = self._message + body
            if moves.room(request):
                self._journal = journal = TunnelJournal(request, moves.settings.max_tokens, moves.purse)
                self._trip = account.trip = Trip(moves, account, journal, self)
                self._note = MIGRATABLE
                return
            why = FULL
        self._why = why
        self._note = moves.note(why)

    def _start(self, head: ResponseHead) -> None:
        """Begin the answer, and tell the client whether it can go on elsewhere."""
        if self._note:
            self._extra = [*self._extra, (names.MIGRATABLE, self._note)]
        super()._start(head)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Messages of the tunnel: the head first, then body bytes with token ids beside them."""
        journal, trip, stream = self._journal, self._trip, self._stream
        if journal is None or trip is None or stream is None:
            super().on_response_data(data, end)
            return
        whole = journal.feed(data)
        body = journal.take()
        try:
            if self._state == WAITING and (whole or journal.stopped) and not self._begins(journal, trip):
                return
            if journal.stopped:
                self._stop(trip)
                body += self._reader.feed(journal.rest)
                whole += journal.rest
        except LayaError as error:
            stream.consumed(len(data))
            self._node_failed(error)
            return
        if self._state == HOLDING:
            self._acknowledge(stream, trip.whole(len(whole)))
            if body:
                self._hold(body)
            return
        if whole:
            self._acknowledge(stream, trip.whole(len(whole) - len(body)))
        if body:
            self._pass_on(body, trip)
        if journal.pinned and not journal.stopped:
            self._pin(journal, trip, stream)
        if journal.held > EARLY:
            self._acknowledge(stream, trip.early(journal.held))

    def _pin(self, journal: TunnelJournal, trip: Trip, stream: ClientStream) -> None:
        """From here on the answer passes as it comes."""
        journal.stop(journal.pinned)
        self._stop(trip)
        body = self._reader.feed(journal.rest)
        self._acknowledge(stream, trip.whole(len(journal.rest) - len(body)))
        if body:
            self._pass_on(body, trip)

    def _begins(self, journal: TunnelJournal, trip: Trip) -> bool:
        """Whether the answer is on its way to the client, or here. Raises LayaError for a head that is none."""
        raw = journal.take_head()
        if raw:
            head = _known(raw) if len(raw) <= _SHORT else read_head(raw)
            self._reader.head = head
            if not head.events:
                journal.stop("the answer is no stream of events")
            return self._answer(head)
        if journal.messages:
            raise LayaError(Code.INTERNAL, "NODE_PROTOCOL", "The node's answer has no head.")
        self._stop(trip)  # at the very first message: what it is, is for the reader to say
        super().on_response_data(journal.rest, False)
        return False

    @staticmethod
    def _acknowledge(stream: ClientStream, more: int) -> None:
        if more:
            stream.consumed(more)

    def _pass_on(self, body: bytes, trip: Trip) -> None:
        account = self._account
        if not account.bytes_out:
            account.answered()
        account.bytes_out += len(body)
        trip.flowing += len(body)
        self._tail = body
        self._exchange.write(body)
        if trip.progress():
            self._await_answer()

    def _drained(self, n: int) -> None:
        """Bytes left for the client: their node may send as many more, unless that was said before."""
        trip = self._trip
        more = n if trip is None else trip.left(n)
        if more:
            super()._drained(more)
        journal, stream = self._journal, self._stream
        if trip is not None and journal is not None and stream is not None and journal.held > EARLY:
            self._acknowledge(stream, trip.early(journal.held))

    def _stop(self, trip: Trip) -> None:
        """Nothing is taken down from here on."""
        self._journal = None
        head = self._reader.head
        self._why = trip.stop(head.status if head is not None else 200)

    def on_response_trailers(self, headers: Headers) -> None:
        """The end of the answer, or of this node's part in it."""
        trip, journal = self._trip, self._journal
        if trip is not None and journal is not None and self._state == STREAMING:
            error = error_from_trailers(headers)
            if error is not None and trip.parts(error):
                self._move(trip, False)
                return
            if error is None and journal.held:
                self._node_failed(
                    LayaError(Code.INTERNAL, "NODE_PROTOCOL", "The node ended its answer before it was whole.")
                )
                return
        super().on_response_trailers(headers)

    # A node is lost.

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The node's stream is over. Where the answer has a journal, another node goes on with it."""
        trip = self._trip
        if trip is not None and self._journal is not None and self._state == STREAMING:
            self._stream = None
            self._move(trip, unprocessed)
            return
        super().on_response_closed(code, unprocessed)

    def _move(self, trip: Trip, unprocessed: bool) -> None:
        journal = self._journal
        if journal is None:
            return
        journal.forget_part()
        if journal.finished:
            trip.completed()
            super().on_response_trailers(_OK)
            return
        error = trip.leave(unprocessed)
        if error is not None:
            self.refuse(error)
            return
        heir = self._heir(trip, journal)
        exchange = self._exchange
        exchange.on_abort, exchange.on_drain = heir._client_gone, heir._drained
        self._leave()
        heir._look_again()
        trip.seek()

    def _heir(self, trip: Trip, journal: TunnelJournal) -> MovingRelay:
        """Who goes on with the answer: late calls for this one's stream must not reach it."""
        made = MovingRelay(
            self._account, self._exchange, self._message, self._forward, self._extra, self._moves, self._why
        )
        made._fields = self._fields
        made._state = STREAMING
        made._reader.head = self._reader.head
        made._tail = self._tail
        made._journal = journal
        made._trip = trip
        trip.mover = made
        return made

    def resume(self, reservation: Reservation) -> bool:
        """Have this node go on with the answer."""
        account, trip, upstream = self._account, self._trip, reservation.node.upstream
        if upstream is None or trip is None:
            return False
        headers = account.core.node_headers(TUNNEL, account, reservation, self._forward)
        headers.append((names.RESUME, b"1"))
        deadline = self._fields.deadline
        if deadline is not None:
            headers.append((b"grpc-timeout", format_timeout(deadline - account.core.loop.time())))
        stream: ClientStream | None = upstream.open(headers, self)
        if stream is None:
            return False
        self._stream = stream
        account.sent(account.core.clock())
        stream.send(trip.asked(), True)
        return True

    # Time limits.

    def _look_again(self) -> None:
        """See that the time without a node has an end too."""
        trip, deadlines = self._trip, self._account.core.deadlines
        if trip is not None and trip.moving and self._state != OVER:
            when = deadlines.live.get(self, math.inf)
            if self._fields.deadline is not None:
                when = min(when, self._fields.deadline)
            deadlines.put(self, min(when, trip.until))

    def on_deadline(self) -> None:
        """Some time limit may be over; an answer without a node has but that of the whole request, and its own."""
        trip = self._trip
        if trip is None or not trip.moving:
            super().on_deadline()
        elif not trip.given_up():
            limit = self._fields.deadline
            if limit is not None and self._account.core.loop.time() >= limit:
                super().on_deadline()
            else:
                self._look_again()

    def refuse(self, error: LayaError) -> None:
        """End the request with an error; one that broke off and could not go on elsewhere says why.

        A node that fell silent is left for another one instead.
        """
        trip = self._trip
        if trip is not None and self._journal is not None and self._state == STREAMING and trip.silent(error):
            stream, self._stream = self._stream, None
            if stream is not None and not stream.closed:
                stream.reset(CANCEL)
            self._move(trip, False)
            return
        if self._why and self._state == STREAMING and error.reason == "NODE_LOST":
            error = stays(error, self._why)
        super().refuse(error)
