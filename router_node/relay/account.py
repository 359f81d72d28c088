"""What one request owes and what is known of it, from its arrival to its last byte.

Every relayed request, gRPC or HTTP, has one account. It holds the place in the dispatcher (a reservation or a ticket)
and gives it back exactly once, whatever happened; its end is what the metrics and the access log see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from router_node.dispatch import Reservation, Ticket
from router_node.middleware.keys import OPEN_CALLER
from router_node.relay.fields import Fields
from router_node.relay.track import Track
from shared import headers as names
from shared.errors import LayaError
from shared.net.api import Headers
from shared.net.uploads import crowded_error

if TYPE_CHECKING:
    from router_node.middleware.keys import Caller
    from router_node.relay.core import RelayCore
    from router_node.relay.trip import Trip
    from router_node.routes.plan import Plan

# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_OPEN_CALLER: Final = OPEN_CALLER
CANCELLED_HTTP: Final = 499  # the client went away first


class Account:
    """One request. It is also its own line of the access log, see ``router_node.middleware.access_log``.

    ``code`` is the gRPC code, or the HTTP status, that the client was told. ``worked`` is the router's own time in
    seconds until the first byte went to a node: waiting for the client's bytes or for a node with room is not in it.
    """

    __slots__ = (
        "at",
        "attempts",
        "bytes_in",
        "bytes_out",
        "caller",
        "code",
        "core",
        "excluded",
        "fields",
        "first_by",
        "headers",
        "idle",
        "kept",
        "limit",
        "look_at",
        "message",
        "method",
        "migrated",
        "paused",
        "peer",
        "plan",
        "protocol",
        "reason",
        "request_id",
        "reservation",
        "routed",
        "seen",
        "sent_at",
        "started",
        "ticket",
        "track",
        "trip",
        "worked",
    )

    def __init__(self, core: RelayCore, protocol: str, method: str, peer: str, started: float) -> None:
        self.core = core
        self.protocol = protocol
        self.method = method
        self.peer = peer
        self.started = started  # later its length, see ``seconds``
        self.at = 0.0  # the wall clock at its end; 0 until then
        self.worked = 0.0
        self.routed = -1.0
        self.request_id = b""
        self.caller: Caller | None = None
        self.fields: Fields | None = None
        self.headers: dict[bytes, bytes] | None = None  # the client's, for the rules
        self.message = b""  # what the rules may look into: the first message or the body, only where they want to
        self.plan: Plan | None = None  # set where a rule applies
        self.code = self.attempts = self.bytes_in = self.bytes_out = 0
        # These belong to ``phases``: when the first token is due (0: no one looks), what was seen, looks without news.
        self.first_by = self.look_at = self.limit = 0.0
        self.sent_at = 0.0
        self.seen = self.idle = 0
        self.kept = 0  # bytes of the request's body that are in the account of ``core.uploads``
        self.reason = ""
        self.excluded: set[str] | None = None
        self.reservation: Reservation | None = None
        self.ticket: Ticket | None = None
        self.paused: asyncio.TimerHandle | None = None  # before another try
        self.trip: Trip | None = None  # set where the stream may go on elsewhere
        self.migrated = ""  # from where to where it did, and how long it stood still, ``a>b:12ms``; set at its end
        core.metrics.in_flight += 1
        core.until_timed -= 1
        self.track: Track | None = core.timed() if core.until_timed <= 0 else None

    @property
    def node_id(self) -> str:
        """The node of the last try, empty before the first."""
        return self.reservation.node.id if self.reservation is not None else ""

    @property
    def model(self) -> str:
        """The model that was asked for, empty when the request did not get that far."""
        if self.plan is not None:
            return self.plan.asked
        return self.fields.model if self.fields is not None else ""

    @property
    def max_attempts(self) -> int:
        """Nodes that may be tried for the request."""
        return self.plan.max_attempts if self.plan is not None else self.core.settings.max_attempts

    @property
    def once(self) -> bool:
        """Whether the client forbids to repeat what a node may have begun."""
        return self.headers is not None and names.is_set(self.headers.get(names.NO_MIGRATE))

    @property
    def tenant(self) -> str:
        """Tenant of the caller's key."""
        return self.caller.tenant if self.caller is not None else ""

    @property
    def seconds(self) -> float:
        """How long the request took; only after its end."""
        return self.started

    def submit(
        self,
        fields: Fields,
        on_grant: Callable[[Reservation], None],
        on_refuse: Callable[[LayaError], None],
    ) -> Reservation | None:
        """Ask for a node: a reservation when one has room now, else None and one of the callbacks later.

        Raises LayaError when no node can ever take the request.
        """
        core = self.core
        self.fields = fields
        caller = self.caller
        if caller is not None and caller is not _OPEN_CALLER:
            fields.tenant = caller.tenant
            if fields.priority < caller.best_priority:
                fields.priority = caller.best_priority
        live = core.table.live
        if live is not None:
            outcome = live.submit(self, fields, on_grant, on_refuse)
        else:
            if not fields.model:
                fields.model = core.only_model()
            outcome = core.dispatcher.submit(fields, on_grant, on_refuse)
        if isinstance(outcome, Ticket):
            self.ticket = outcome
            if self.track is not None:
                self.track.queued(core.clock())
            return None
        if self.track is not None:
            self.track.chosen(core.clock())
        self.reservation = outcome
        self.attempts += 1
        return outcome

    def wait_again(
        self, on_grant: Callable[[Reservation], None], on_refuse: Callable[[LayaError], None]
    ) -> Reservation | None:
        """Ask again after a node gave the request back, as ``submit`` does and with the time it has waited."""
        return self.submit(self.fields or Fields(), on_grant, on_refuse)

    def granted(self, reservation: Reservation) -> None:
        """The dispatcher chose a node after a wait, or another one."""
        self.ticket = None
        if self.track is not None:
            self.track.chosen(self.core.clock())
        self.reservation = reservation
        self.attempts += 1

    def another(self, free: bool = False) -> Reservation | None:
        """Another node for the same request, leaving out those tried; None when there is none or enough were tried.

        ``free``: the last node never saw the request, so this is no second try of anything.
        """
        old = self.reservation
        if old is None or self.attempts >= self.max_attempts:
            return None
        if not free and not self.core.dispatcher.may_retry(old):
            self.core.metrics.count("retry_budget_empty")
            return None
        if self.excluded is None:
            self.excluded = set()
        self.excluded.add(old.node.id)
        new = self.core.dispatcher.retry(old, self.excluded)
        if new is None and self.plan is not None and self.fields is not None:
            new = self.plan.another(self.core.dispatcher, self.fields, self.excluded)
        if new is not None:
            self.core.metrics.count("retry")
            self.granted(new)
        return new

    def once_more(self) -> Reservation | None:
        """The last node again, after ``another`` found none: it never saw the request, and may have a new connection.

        None when it is not to be had either, or enough was tried.
        """
        old = self.reservation
        if old is None or self.attempts >= self.max_attempts:
            return None
        new = self.core.dispatcher.retry(old, (self.excluded or set()) - {old.node.id})
        if new is not None:
            self.core.metrics.count("retry")
            self.granted(new)
        return new

    def refused(self, retry_after: float | None) -> None:
        """The node had no room after all: it rests a moment."""
        if self.reservation is not None:
            self.core.dispatcher.on_refused(self.reservation, retry_after)
            self.core.metrics.count("node_refused")

    def sent(self, since: float) -> None:
        """The first byte goes to a node; ``since`` is when this piece of the router's work began."""
        if self.core.busy_poll is not None:
            self.core.busy_poll.note()
        self.sent_at = now = self.core.clock()
        if self.routed < 0:
            self.routed = spent = self.worked + now - since
            self.core.metrics.routed(spent)
        if self.track is not None:
            self.track.sent(now, self.node_id)

    def answer_begins(self, streams: bool) -> None:
        """The node's answer begins; ``streams``: it comes piece by piece."""
        if self.track is not None:
            self.track.answered(self.core.clock(), streams)

    def answer_ends(self) -> None:
        """The last of the node's answer is here."""
        if self.track is not None:
            self.track.done(self.core.clock())

    def mark(self, out: Headers) -> None:
        """Tell the client, with its answer, of the rule that applied and of the wait for a node with room."""
        if self.plan is not None:
            out.append((names.ROUTE, self.plan.tag))
        if self.reservation is not None and self.reservation.waited > 0.0:
            out.append((names.QUEUE_TIME, b"%d" % (self.reservation.waited * 1e6)))

    def noted(self, name: str, facts: dict[str, str | int | float]) -> None:
        """Something rare happened to the request ("migrated", say): an event of its span, where it is traced."""
        if self.track is not None and self.track.trace is not None:
            self.track.trace.event(name, facts, self.core.clock())

    def answered(self) -> None:
        """The first token of a streamed answer is here."""
        reservation = self.reservation
        if reservation is not None:
            reservation.node.health.answer(self.core.clock() - self.sent_at)

    def node_failed(self, lost: bool = False) -> None:
        """It was the node's fault; ``lost``: with its connection."""
        if self.reservation is not None:
            self.core.dispatcher.outliers.failed(self.reservation, self.core.loop.time(), lost)

    def node_lost(self, unprocessed: bool) -> None:
        """The node's stream ended before its answer was complete; ``unprocessed``: it never saw the request."""
        self.core.metrics.count("node_lost")
        if unprocessed:
            self.node_blameless()
        else:
            self.node_failed(True)

    def node_blameless(self) -> None:
        """How the request ends says nothing of the node."""
        if self.reservation is not None:
            self.core.dispatcher.outliers.neutral(self.reservation)

    def release(self) -> None:
        """Give the place in the dispatcher back; the node's stream is over."""
        if self.reservation is not None:
            self.reservation.end()
        if self.ticket is not None:
            self.ticket.cancel()
            self.ticket = None
        if self.paused is not None:
            self.paused.cancel()
            self.paused = None

    def keep(self, size: int) -> None:
        """Hold a whole body until ``let_go`` or the end. Raises LayaError when all bodies together are too much."""
        if not self.core.uploads.keep(size):
            self.core.metrics.count("uploads_full")
            raise crowded_error()
        self.kept += size

    def let_go(self) -> None:
        """The body is not needed any more."""
        self.core.uploads.let_go(self.kept)
        self.kept = 0

    def failed(self, error: LayaError, http: bool = False) -> None:
        """Note what the client is told."""
        self.code = error.http_status if http else int(error.code)
        self.reason = error.reason

    def end(self) -> None:
        """The client's side is over; the first call counts."""
        if self.at:
            return
        self.at = time.time()
        self.release()
        if self.kept:
            self.let_go()
        trip = self.trip
        if trip is not None:
            self.migrated = trip.logged
            self.trip = None  # each has the other, and they would only go with the collector
            trip.close()
        core = self.core
        metrics = core.metrics
        metrics.in_flight -= 1
        if core.busy_poll is not None and self.routed >= 0.0:  # what no node was asked for keeps nobody awake
            core.busy_poll.note()
        metrics.finished(self.method, self.code)
        if self.track is not None:
            core.tracked(self, self.track)
        log = core.access_log
        if log is not None:
            self.started = core.clock() - self.started
            log.add(self)
