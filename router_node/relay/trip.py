"""One stream's way from node to node: whether it may go on, where, and what is told of it."""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from router_node.dispatch import Pool, Reservation, Ticket
from router_node.relay.faults import is_fault, no_room
from router_node.relay.fields import Fields
from router_node.relay.flow import Flow
from router_node.relay.journal import Journal
from router_node.relay.migrate import GRANTED, Migrations, journal_value
from router_node.relay.phases import BETWEEN_TOKENS
from router_node.relay.poison import acquits_http
from router_node.relay.retries import later
from shared.errors import Code, LayaError, unavailable
from shared.net.api import Headers
from shared.net.grpc_wire import error_from_response, error_from_trailers

if TYPE_CHECKING:
    from router_node.relay.account import Account

_DEAD: Final = "ENGINE_DEAD"
# With these a node ends a stream that it could not end itself: another one may go on with it.
_PARTING: Final = frozenset(("DRAINING", _DEAD))
_FINAL: Final = (Code.DEADLINE_EXCEEDED, Code.CANCELLED)
_NO_OTHER: Final = "no other node has this model and revision"
_STATUS_200: Final = (b":status", b"200")


class Mover(Protocol):
    """What relays the stream."""

    @abstractmethod
    def resume(self, reservation: Reservation) -> bool:
        """Have a node go on with the stream; False when it has no connection."""

    @abstractmethod
    def refuse(self, error: LayaError) -> None:
        """The stream cannot go on."""


class Trip(Flow):
    """It lasts as long as its request has an account. ``mover`` is who relays the stream now, by the trip's flow.

    ``moving`` says that the stream has no node that has sent anything new; ``until`` is then the loop time at which it
    is given up. ``told`` is what the client is told of its moves, ``logged`` what the access log is.
    """

    __slots__ = (
        "_account",
        "_at_start",
        "_base",
        "_error",
        "_failures",
        "_heard",
        "_innocent",
        "_last_at",
        "_lost_at",
        "_model",
        "_moves",
        "_prefilled",
        "_silent",
        "_source",
        "_stalled",
        "_tried",
        "_unfit",
        "attempts",
        "journal",
        "logged",
        "mover",
        "moving",
        "told",
        "until",
    )

    def __init__(self, moves: Migrations, account: Account, journal: Journal, mover: Mover) -> None:
        super().__init__()
        self._moves = moves
        self._account = account
        self.journal = journal
        self.mover: Mover | None = mover
        self.attempts = 0
        self.until = 0.0
        self.told = b""
        self.logged = ""
        self._error: LayaError | None = None  # what the present node said instead of going on
        self._unfit = ""  # the same, where no node will say anything else
        self._silent: LayaError | None = None  # what a client is told of a node that only fell silent
        self._heard = True  # the present node has answered: it was alive when it was asked
        self._source = ""  # the node that was lost
        self._last_at = moves.loop.time()  # when the client was last given something
        self._at_start = 0  # tokens that had been passed on when the present node was asked
        self._innocent = self.moving = False
        self._failures = self._prefilled = 0  # failures are of this move
        self._lost_at = self._stalled = 0.0  # seconds of earlier moves
        self._tried: set[str] = set()
        self._base: Fields | None = None  # made when it is first needed, as most streams end well
        node = account.reservation.node if account.reservation is not None else None
        self._model = f"{node.spec.model}@{node.spec.revision}" if node is not None else ""

    def close(self) -> None:
        """The request is over."""
        self.mover = None
        self.journal.close()

    # While all is well.

    def progress(self) -> bool:
        """The client has been given something. Whether that is the end of a move: the first of a new node."""
        arrived = self.moving
        if arrived:
            self._arrived()
        self._last_at = self._moves.loop.time()
        if not self._innocent and len(self.journal.tokens) > self._at_start:
            self._acquit()
        return arrived

    def _acquit(self) -> None:
        """Nodes do not die of this request."""
        self._innocent = True
        poisons = self._moves.poisons
        if len(poisons):
            poisons.lives(self.journal.request)

    def stop(self, status: int = 200) -> str:
        """Nothing is taken down from here on; why. ``status`` of the answer, over HTTP: an error is no stream."""
        why = self.journal.stopped
        if acquits_http(status):
            self._acquit()  # something came, and nobody will look for tokens in it
        if status < 400:
            self._moves.metrics.moves.keeps(why)
        self.journal.close()
        return why

    # A node says that it does not go on.

    def answers(self, headers: Headers, end: bool) -> bool:
        """A later node's first headers: whether it goes on with the stream."""
        if end:
            self._error = error_from_trailers(headers)
        elif headers[0] != _STATUS_200:
            self._error = error_from_response(headers)
        elif journal_value(headers) == GRANTED:
            self._heard = True
            return True
        if self._error is None:
            self._error = unavailable("The node does not go on with streams of others.", "RESUME_REFUSED")
        return False

    def parts(self, error: LayaError) -> bool:
        """Whether what a node's trailers say is the end of its part only; its stream ends next."""
        parting = error.code is Code.UNAVAILABLE and error.reason in _PARTING
        parts = parting or (self.moving and error.code not in _FINAL)
        if parts:
            self._error = error
        return parts

    def silent(self, error: LayaError) -> bool:
        """Whether this error is a node's that sent nothing for too long; its stream is to be reset then."""
        if self.moving or error.metadata is None or error.metadata.get("phase") != BETWEEN_TOKENS:
            return False
        self._error = self._silent = error
        return True

    # A node is lost.

    def leave(self, unprocessed: bool) -> LayaError | None:
        """The node's stream is over before its answer was: an error if there is to be no other node, else ``seek``.

        ``unprocessed``: it never saw the request.
        """
        self.orphaned()
        heard = self._heard or self._error is not None
        died = self._judge(unprocessed)
        account, moves, now = self._account, self._moves, self._moves.loop.time()
        if not self.moving:
            self.moving = True
            self.until = now + max(0.0, moves.settings.max_stall - self._stalled)
            self._lost_at = now
            self._source = account.node_id
            self._failures = 0
            self._tried = set()
        else:
            self._failures += 1
        last = account.reservation
        if last is not None:
            self._tried.add(last.node.id)
        if died and len(self.journal.tokens) == self._at_start and moves.died(self.journal.request, account, heard):
            moves.metrics.moves.moved("poisonous")
            return moves.poisonous()
        if self._unfit:
            return self._gave_up("unfit", f"the next node does not take the rest ({self._unfit})")
        if self.attempts >= moves.settings.attempts:
            return self._gave_up("attempts", f"it was moved {self.attempts} times already")
        return self._timed_out() if now >= self.until else None

    def _judge(self, unprocessed: bool) -> bool:
        """What this end says of the node; whether it died."""
        account = self._account
        said, self._error = self._error, None
        if said is None or said.reason == _DEAD:
            account.node_lost(unprocessed)
            return not unprocessed
        if said.code is Code.INVALID_ARGUMENT:
            self._unfit = said.message.rstrip(".")
        if no_room(said):
            account.refused(said.retry_after)
        elif is_fault(said):
            account.node_failed()
        else:
            account.node_blameless()
        return False

    def seek(self) -> None:
        """Find a node, and have it go on with the stream; at once, or after a pause when one has failed to."""
        failures = self._failures
        if not failures:
            self._seek()
            return
        settings = self._account.core.settings
        wait: float = min(settings.retry_backoff * (1 << min(failures - 1, 16)), settings.max_retry_backoff)
        later(self._account, wait * (0.5 + random.random()), self._seek)

    def _seek(self) -> None:
        try:
            reservation = self._find()
            if reservation is not None:
                self._go(reservation)
        except LayaError as error:
            self._refuse(error)
        except Exception as error:
            self._refuse(self._account.core.defect(error, self._account.request_id))

    def _find(self) -> Reservation | None:
        """A node, or a place in the line for one. Raises LayaError."""
        account, moves = self._account, self._moves
        dispatcher, old = account.core.dispatcher, account.reservation
        ask = self._ask()
        pools = dispatcher.resolve(ask.model)
        if old is None or not pools:
            raise self._gave_up("no_other_node", _NO_OTHER)
        if not self._others(pools[0]):
            others = any(node_id != self._source for node_id in pools[0].nodes)
            if not others or moves.loop.time() - self._lost_at > account.core.settings.queue_timeout:
                raise self._gave_up("no_other_node", _NO_OTHER)
            self._failures += 1  # one may be on its way back
            self.seek()
            return None
        if self._failures:
            ask.refusals = old.ask.refusals
        if self._prefilled + ask.prompt_tokens > moves.settings.max_prefill_tokens:
            raise self._gave_up("tokens", "too many tokens would have to be computed again")
        if not moves.may_move(ask.model, pools[0]):
            raise self._gave_up("pool_budget", "too many streams of its model are moved already")
        try:
            outcome = dispatcher.retry(old, self._tried, ask) or dispatcher.submit(ask, self._granted, self._no_room)
        except LayaError as error:
            raise self._gave_up("no_room", error.message) from None
        if isinstance(outcome, Ticket):
            account.ticket = outcome
            return None
        account.granted(outcome)
        return outcome

    def _others(self, pool: Pool) -> bool:
        """Whether any node that was not tried may take the rest. One that went since may come back as another."""
        tried = self._tried
        for node in pool.nodes.values():
            if node.live:
                if node.id not in tried:
                    return True
            else:
                tried.discard(node.id)
        return False

    def _granted(self, reservation: Reservation) -> None:
        """There is room after a wait. The dispatcher has no part in what goes wrong here."""
        account = self._account
        account.granted(reservation)
        try:
            self._go(reservation)
        except Exception as error:
            self._refuse(account.core.defect(error, account.request_id))

    def _no_room(self, error: LayaError) -> None:
        self._account.ticket = None
        self._refuse(self._gave_up("no_room", error.message))

    def _go(self, reservation: Reservation) -> None:
        mover = self.mover
        if mover is not None and not mover.resume(reservation):
            self._account.core.metrics.count("node_unreachable")
            self._tried.add(reservation.node.id)
            self._failures += 1
            self.seek()

    def _refuse(self, error: LayaError) -> None:
        mover = self.mover
        if mover is not None:
            mover.refuse(error)

    def asked(self) -> bytes:
        """A node is sent the stream. Returns the framed request for it."""
        self.attempts += 1
        self._innocent = self._heard = False
        self._at_start = len(self.journal.tokens)
        reservation = self._account.reservation
        if reservation is not None:
            self._prefilled += reservation.ask.prompt_tokens
        return self.journal.resumed(self.attempts)

    def _ask(self) -> Fields:
        """The original wishes, from where the stream stands, for the very pool that it is in."""
        base = self._base
        if base is None:
            base = self._base = _base(self._account, self._model)
        done = len(self.journal.tokens)
        out = base.copy()
        out.tenant, out.deadline = base.tenant, base.deadline
        out.prompt_tokens += done
        out.max_new_tokens = max(1, out.max_new_tokens - done)
        return out

    # The end of a move.

    def _arrived(self) -> None:
        """The new node has sent something new."""
        now, account = self._moves.loop.time(), self._account
        counts = self._moves.metrics.moves
        account.answer_begins(True)
        account.answered()
        self.moving = False
        self._silent = None
        self._stalled += now - self._lost_at
        stall = now - self._last_at
        source, target, spent = _word(self._source), _word(account.node_id), int(stall * 1e3)
        told = f"from={source} to={target} stall_ms={spent}".encode()
        self.told = self.told + b"," + told if self.told else told
        logged = f"{source}>{target}:{spent}ms"
        self.logged = f"{self.logged},{logged}" if self.logged else logged
        counts.moved("moved")
        counts.stalled(stall)
        account.noted("migrated", {"laya.from": source, "laya.to": target, "laya.stall_ms": spent})

    def completed(self) -> None:
        """Everything had been passed on when the node was lost; nothing has to move."""
        self._judge(False)
        self._moves.metrics.moves.moved("complete")

    def given_up(self) -> bool:
        """Whether it has been without a node for too long, and was refused."""
        if not self.moving or self._moves.loop.time() < self.until:
            return False
        self._refuse(self._timed_out())
        return True

    def _timed_out(self) -> LayaError:
        """It has been without a node for too long."""
        return self._gave_up("stall", f"{self._moves.settings.max_stall:g} s passed without one that goes on with it")

    def _gave_up(self, outcome: str, why: str) -> LayaError:
        self._moves.metrics.moves.moved(outcome)
        self._account.noted("not_migrated", {"laya.from": _word(self._source), "laya.reason": why})
        journal = self.journal
        size = journal.body_bytes or journal.text_bytes
        why = why.rstrip(".")
        done = f"{len(journal.tokens)} tokens in {journal.messages} messages; it cannot go on elsewhere: {why}."
        error = self._silent or unavailable(f"Node {self._source} was lost in the middle of the answer.", "NODE_LOST")
        error.message = f"{error.message.rstrip('.')}, after {done}"
        error.metadata = {
            **(error.metadata or {}),
            "node": self._source,
            "retry_safe": "false",
            "delivered_tokens": str(len(journal.tokens)),
            "delivered_messages": str(journal.messages),
            "delivered_bytes": str(size),
            "not_migrated": why,
        }
        return error


def _base(account: Account, model: str) -> Fields:
    fields = account.fields or Fields()
    out = fields.copy()
    out.tenant, out.deadline, out.model = fields.tenant, fields.deadline, model
    pools = account.core.dispatcher.resolve(model)
    if pools:
        out.prompt_tokens = pools[0].prompt_tokens(fields)
        out.max_new_tokens = fields.max_new_tokens or pools[0].default_max_tokens
    out.prompt_bytes = 0
    out.n = 1
    return out


def _word(node_id: str) -> str:
    """A node's id as it may stand in a list."""
    return "".join(c if c.isascii() and c.isprintable() and c not in ' ,>"' else "?" for c in node_id)
