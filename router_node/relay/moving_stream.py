"""A streamed gRPC call that can go on elsewhere when its node is lost.

Until a node grants a journal this is a ``WaryStream`` and nothing else. From then on whole messages are relayed: bytes
of one that is not whole wait here, and are lost with their node. What has been passed on is in the journal, and another
node is asked for the rest (``migrate``). The client's stream notices nothing of it but the pause.
"""

from __future__ import annotations

import math
from typing import Final

from router_node.dispatch import Reservation
from router_node.relay.account import Account
from router_node.relay.fields import Fields
from router_node.relay.flow import EARLY
from router_node.relay.journal import Journal, TypedJournal
from router_node.relay.methods import Method
from router_node.relay.migrate import ASKED, FULL, MIGRATABLE, UNWANTED, Migrations, journal_value, stays
from router_node.relay.trip import Trip
from router_node.relay.wary_stream import WaryStream
from shared import headers as names
from shared.errors import LayaError
from shared.net.api import CANCEL, Headers, ServerStream
from shared.net.fields import CheckedHeaders
from shared.net.gather import Piece, gather
from shared.net.grpc_wire import error_from_trailers
from shared.net.splice import REPLAY_BYTES

_STATUS_200: Final = (b":status", b"200")
_PREFIX: Final = 5
# The numbers of a streamed response's fields: text, token ids, finish reason.
_SHAPES: Final = {"Generate": (2, 3, 5), "Chat": (3, 4, 6)}


class MovingStream(WaryStream):
    """See the module. ``_kept`` is a request that is longer than what the splice keeps by itself."""

    __slots__ = ("_journal", "_kept", "_kept_bytes", "_note", "_trip", "_why")

    def __init__(
        self,
        down: ServerStream,
        account: Account,
        fields: dict[bytes, bytes],
        forward: Headers,
        method: Method,
        ask: Fields,
        moves: Migrations,
    ) -> None:
        unwanted = names.NO_MIGRATE in fields and names.is_set(fields[names.NO_MIGRATE])
        super().__init__(down, account, fields, forward if unwanted else [*forward, ASKED], method, ask, moves)
        self._kept: list[Piece] | None = None
        self._kept_bytes = 0
        self._trip: Trip | None = None
        self._journal: Journal | None = None  # the trip's, while everything is taken down
        self._why = UNWANTED if unwanted else ""  # why the stream cannot go on elsewhere, where somebody said so
        self._note = b""  # what the client is told of that

    # The request.

    def on_data(self, data: bytes, end: bool) -> None:
        """Keep a longer request than a splice does."""
        if self._kept is not None:
            self._keep(data)
        elif self.up is not None and self._early is not None and self._early_bytes + len(data) > REPLAY_BYTES:
            self._kept = list(self._early)
            self._kept_bytes = self._early_bytes
            self._keep(data)
        super().on_data(data, end)

    def _keep(self, data: bytes) -> None:
        kept = self._kept
        if kept is not None:
            self._kept_bytes += len(data)
            if self._kept_bytes > self._moves.settings.max_request_bytes + _PREFIX:
                kept.clear()  # too long in any case; its length is all that matters
            else:
                gather(kept, data)

    def _request(self) -> bytes:
        pieces = self._kept if self._kept is not None else self._early
        return b"".join(pieces) if pieces else b""

    # The first node's answer.

    def on_response(self, headers: Headers, end: bool) -> None:
        """The first node's headers may grant a journal; a later node's say whether it goes on with the stream."""
        trip = self._trip
        if trip is not None and trip.moving:
            if not trip.answers(headers, end) and self.up is not None:
                self.up.reset(CANCEL)  # it ends at the close of this batch, and then another one is asked
            return
        if not end and trip is None and headers[0] == _STATUS_200:
            value = journal_value(headers)
            if self._why:
                self._note = self._moves.note(self._why)
            elif value:
                self._consider(value)
        super().on_response(headers, end)
        self._kept = None

    def _consider(self, value: bytes) -> None:
        moves, account = self._moves, self._account
        size = max(self._kept_bytes, self._early_bytes) - _PREFIX
        why = moves.refusal(value, size)
        if not why:
            request = self._request()
            shape = _SHAPES.get(self._method.label)
            if not self.request_ended or not _is_one_message(request) or shape is None:
                why = "the request is not one plain message"
            elif not moves.room(request):
                why = FULL
            else:
                journal = TypedJournal(request, moves.settings.max_tokens, moves.purse, shape[0], shape[1], shape[2])
                self._journal = journal
                self._trip = account.trip = Trip(moves, account, journal, self)
                self._note = MIGRATABLE
                return
        self._why = why
        self._note = moves.note(why)

    def filter_response(self, headers: Headers) -> Headers:
        """Tell the client whether its stream can go on elsewhere."""
        out = super().filter_response(headers)
        if self._note:
            out.append((names.MIGRATABLE, self._note))
        return out

    # The answer.

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Whole messages go on untouched; what is not whole waits."""
        journal, trip = self._journal, self._trip
        if journal is None or trip is None:
            if trip is not None:
                trip.flowing += len(data)
            super().on_response_data(data, end)
            return
        out = journal.feed(data)
        if journal.stopped:
            self._journal = None
            self._why = trip.stop()
            out += journal.rest
        if out:
            self._pass_on(out, trip)
        if journal.held > EARLY:
            self._take_early(journal, trip)
        if end:
            self.ended_bare(b"")

    def _pass_on(self, out: bytes, trip: Trip) -> None:
        if not self.bytes_out:
            self.first_byte()
        if trip.acked:
            trip.whole(0)
        self.bytes_out += len(out)
        trip.flowing += len(out)
        self.down.send(out)
        if trip.progress():
            self._await_answer()

    def on_sent(self, n: int) -> None:
        """Bytes left for the client: their node may send as many more, unless that was said before."""
        trip = self._trip
        more = n if trip is None else trip.left(n)
        if more:
            super().on_sent(more)
        journal = self._journal
        if trip is not None and journal is not None and journal.held > EARLY:
            self._take_early(journal, trip)

    def _take_early(self, journal: Journal, trip: Trip) -> None:
        up = self.up
        if up is not None:
            more = trip.early(journal.held)
            if more:
                up.consumed(more)

    def on_response_trailers(self, headers: Headers) -> None:
        """The end of the answer, or of this node's part in it."""
        trip = self._trip
        if trip is not None and self._journal is not None:
            self._take_status(headers)
            if self.grpc_status != b"0":
                error = error_from_trailers(headers)
                if error is not None and trip.parts(error):
                    return
            elif self._journal.held:
                self._journal.forget_part()
                self.refuse(self._nonsense("half a message"))
                return
        super().on_response_trailers(headers)

    def filter_trailers(self, headers: Headers) -> Headers:
        """Tell the client of its stream's moves."""
        out = super().filter_trailers(headers)
        trip = self._trip
        if trip is not None and trip.told:
            out.append((names.MIGRATED, trip.told))
        return out

    # A node is lost.

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        """Where the stream has a journal, another node goes on with it."""
        trip, journal = self._trip, self._journal
        if trip is not None and journal is not None:
            journal.forget_part()
            self._move(trip, journal, unprocessed)
            return
        super().upstream_lost(code, unprocessed)

    def _move(self, trip: Trip, journal: Journal, unprocessed: bool) -> None:
        if journal.finished:
            trip.completed()
            self.upstream_closed()
            self.on_response_trailers(CheckedHeaders([(b"grpc-status", b"0")]))
            return
        error = trip.leave(unprocessed)
        if error is not None:
            self.refuse(error)
            return
        self._look_again()
        trip.seek()

    def resume(self, reservation: Reservation) -> bool:
        """Have this node go on with the stream."""
        account, trip, upstream = self._account, self._trip, reservation.node.upstream
        if upstream is None or trip is None:
            return False
        headers = account.core.node_headers(self._fields, account, reservation, self._less_time(self._forward))
        headers.append((names.RESUME, b"1"))
        up = upstream.open(headers, self, False)
        if up is None:
            return False
        self.up = up
        account.sent(account.core.clock())
        up.send(trip.asked(), True)
        return True

    def on_request_sent(self, n: int) -> None:
        """Of the request the client has been told everything, once a second node is sent it."""
        if self._trip is None or not self._trip.attempts:
            super().on_request_sent(n)

    # Time limits.

    def _look_again(self) -> None:
        """See that the time without a node has an end too."""
        trip, deadlines = self._trip, self._account.core.deadlines
        if trip is None or self.complete:
            return
        when = deadlines.live.get(self, math.inf)
        if trip.moving:
            limit = self._ask.deadline
            if limit is not None and limit < when:
                when = limit
            deadlines.put(self, min(when, trip.until))

    def on_deadline(self) -> None:
        """Some time limit may be over; a stream without a node has but that of the whole call, and its own."""
        trip = self._trip
        if trip is None or not trip.moving:
            super().on_deadline()
        elif not trip.given_up():
            limit = self._ask.deadline
            if limit is not None and self._account.core.loop.time() >= limit:
                super().on_deadline()
            else:
                self._look_again()

    def refuse(self, error: LayaError) -> None:
        """End the call with an error; one that broke off and could not go on elsewhere says why.

        A node that fell silent is left for another one instead.
        """
        trip, up = self._trip, self.up
        if trip is not None and self._journal is not None and up is not None and trip.silent(error):
            up.reset(CANCEL)  # once it has ended, another one is asked
            return
        if self._why and self.responded and error.reason == "NODE_LOST":
            error = stays(error, self._why)
        super().refuse(error)


def _is_one_message(request: bytes) -> bool:
    """Whether this is one framed message, whole and plain."""
    return request[:_PREFIX] == b"\0" + max(0, len(request) - _PREFIX).to_bytes(4, "big")
