"""How a stream that lost its node goes on elsewhere: whether it may, where, and what is told of it.

``Migrations`` is a worker's: its bounds, budgets and poisons. A ``Trip`` is one stream's, made when a node grants a
journal. What moves the bytes is ``moving_stream`` for gRPC and ``gateway.moving_relay`` for HTTP.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from router_node.dispatch import Reservation, Ticket
from router_node.dispatch.budget import RetryBudget
from router_node.relay.faults import is_fault, no_room
from router_node.relay.fields import Fields
from router_node.relay.journal import Journal, Purse, first_charge
from router_node.relay.poison import Poisons, poisonous
from router_node.relay.settings import MigrationSettings
from shared.errors import Code, LayaError, unavailable
from shared.headers import JOURNAL
from shared.net.api import Headers
from shared.net.grpc_wire import error_from_response, error_from_trailers

if TYPE_CHECKING:
    import asyncio

    from router_node.admin.metrics import RouterMetrics
    from router_node.relay.account import Account

MAX_POOLS: Final = 1024  # with a budget of their own
GRANTED: Final = b"1"
MIGRATABLE: Final = b"1"
# With these a node ends a stream that it would not or could not end itself: another one may go on with it.
_PARTING: Final = "DRAINING"
_FINAL: Final = frozenset((Code.DEADLINE_EXCEEDED, Code.CANCELLED))
_STATUS_200: Final = (b":status", b"200")


class Migrations:
    """One worker's."""

    __slots__ = ("_budgets", "loop", "metrics", "poisons", "purse", "settings")

    def __init__(self, settings: MigrationSettings, loop: asyncio.AbstractEventLoop, metrics: RouterMetrics) -> None:
        self.settings = settings
        self.loop = loop
        self.metrics = metrics
        self.purse = Purse(settings.memory)
        self.poisons = Poisons(settings.poison_seconds, loop.time)
        self._budgets: dict[str, RetryBudget] = {}

    def refusal(self, value: bytes, request_size: int, unwanted: bool) -> str:
        """Why a stream cannot go on elsewhere whose node answered ``value`` (``laya-journal``); empty when it can.

        Where it can, the purse has been asked for its first bytes.
        """
        if unwanted:
            return "the client said laya-no-migrate"
        if value != GRANTED:
            return value.partition(b";")[2].strip()[:200].decode("ascii", "replace") or "the node keeps no journal"
        if request_size > self.settings.max_request_bytes:
            return f"the request is over {self.settings.max_request_bytes} bytes"
        return ""

    def room(self, request: bytes) -> bool:
        """Take the first bytes of a journal."""
        return self.purse.take(first_charge(request))

    def may_move(self, pool: str, sent: int) -> bool:
        """Take one move from a pool's budget."""
        budget = self._budgets.get(pool)
        if budget is None:
            if len(self._budgets) >= MAX_POOLS:
                self._budgets.clear()
            budget = self._budgets[pool] = RetryBudget(self.settings.share, self.settings.burst)
        return budget.take(sent)


class Trip:
    """One stream with a journal, for as long as its request has an account.

    ``moving`` says that it has no node that has sent anything new. ``until`` is then the loop time at which it is given
    up. ``told`` is what the client is told of its moves, ``logged`` what the access log is.
    """

    __slots__ = (
        "_account",
        "_at_start",
        "_base",
        "_failures",
        "_innocent",
        "_lost_at",
        "_model",
        "_moves",
        "_on_grant",
        "_on_refuse",
        "_prefilled",
        "_stalled",
        "_tried",
        "attempts",
        "error",
        "from_node",
        "journal",
        "last_at",
        "logged",
        "moving",
        "told",
        "until",
    )

    def __init__(self, moves: Migrations, account: Account, journal: Journal) -> None:
        self._moves = moves
        self._account = account
        self.journal = journal
        self.moving = False
        self.attempts = 0
        self.until = 0.0
        self.error: LayaError | None = None  # what the last node to be asked said instead of going on
        self.from_node = ""
        self.told = b""
        self.logged = ""
        self.last_at = moves.loop.time()  # when the client was last given something
        self._at_start = 0  # tokens that had been passed on when the present node was asked
        self._failures = 0  # of this move
        self._lost_at = 0.0
        self._stalled = 0.0  # seconds of earlier moves
        self._prefilled = 0
        self._tried: set[str] = set()
        self._base: Fields | None = None  # made when it is first needed, as most streams end well
        node = account.reservation.node if account.reservation is not None else None
        self._model = f"{node.spec.model}@{node.spec.revision}" if node is not None else ""
        self._innocent = False
        self._on_grant: Callable[[Reservation], None] = _nobody
        self._on_refuse: Callable[[LayaError], None] = _nobody

    def close(self) -> None:
        """The request is over."""
        self.journal.close()

    # A node is lost.

    def lost(self, died: bool) -> LayaError | None:
        """The stream has no node any more: an error if it is to have no other, else None, and ``find`` one.

        ``died``: with its node, or by a reset; else the node gave it up in an orderly way.
        """
        account, moves, now = self._account, self._moves, self._moves.loop.time()
        journal = self.journal
        journal.forget_part()
        if not self.moving:
            self.moving = True
            self.from_node = account.node_id
            self._lost_at = now
            self.until = now + max(0.0, moves.settings.max_stall - self._stalled)
            self._failures = 0
            self._tried = set()
        else:
            self._failures += 1
        last = account.reservation
        if last is not None:
            self._tried.add(last.node.id)
            barren = len(journal.tokens) == self._at_start
            if died and barren and moves.poisons.died(journal.request, f"{last.node.id} {last.node.boot_id}"):
                moves.metrics.moves.poisonous += 1
                return self.gave_up("poisonous", poisonous())
        if self.attempts >= moves.settings.attempts:
            return self.gave_up("attempts", self._cannot(f"it was moved {self.attempts} times already"))
        if now >= self.until:
            return self.timed_out()
        return None

    def pause(self) -> float:
        """Seconds until the next node is asked: none the first time."""
        if not self._failures:
            return 0.0
        settings = self._account.core.settings
        wait: float = min(settings.retry_backoff * (1 << min(self._failures - 1, 16)), settings.max_retry_backoff)
        return wait * (0.5 + random.random())

    def find(
        self, on_grant: Callable[[Reservation], None], on_refuse: Callable[[LayaError], None]
    ) -> Reservation | None:
        """A node that goes on with the stream, or None and one of the callbacks later. Raises LayaError."""
        account, moves = self._account, self._moves
        dispatcher = account.core.dispatcher
        old = account.reservation
        ask = self._ask()
        if old is not None and self._failures:
            ask.refusals = old.ask.refusals
        pools = dispatcher.resolve(ask.model)
        if old is None or not pools or not dispatcher.others(old, self._tried, ask.model):
            raise self.gave_up("no_other_node", self._cannot("no other node has this model and revision"))
        if self._prefilled + ask.prompt_tokens > moves.settings.max_prefill_tokens:
            raise self.gave_up("tokens", self._cannot("too many tokens would have to be computed again"))
        if not moves.may_move(ask.model, pools[0].sent):
            raise self.gave_up("pool_budget", self._cannot("too many of its model's streams are moved already"))
        self._on_grant, self._on_refuse = on_grant, on_refuse
        try:
            outcome = dispatcher.retry(old, self._tried, ask) or dispatcher.submit(ask, self._granted, self._refused)
        except LayaError as error:
            raise self.gave_up("no_room", self._cannot(error.message.rstrip("."))) from None
        if isinstance(outcome, Ticket):
            account.ticket = outcome
            return None
        account.granted(outcome)
        return outcome

    def asked(self) -> bytes:
        """A node is sent the stream. Returns the framed request for it."""
        self.attempts += 1
        self._innocent = False
        self._at_start = len(self.journal.tokens)
        reservation = self._account.reservation
        if reservation is not None:
            self._prefilled += reservation.ask.prompt_tokens
        return self.journal.resumed(self.attempts)

    def unreachable(self) -> None:
        """The node that was found has no connection."""
        self._account.core.metrics.count("node_unreachable")
        self._failures += 1
        reservation = self._account.reservation
        if reservation is not None:
            self._tried.add(reservation.node.id)

    def answers(self, headers: Headers, end: bool) -> bool:
        """The node's first headers: whether it goes on with the stream. ``error`` says why it does not."""
        if end:
            self.error = error_from_trailers(headers)
        elif headers[0] != _STATUS_200:
            self.error = error_from_response(headers)
        elif journal_value(headers) == GRANTED:
            return True
        if self.error is None:
            self.error = unavailable("The node does not go on with streams of others.", "RESUME_REFUSED")
        return False

    def is_parting(self, error: LayaError) -> bool:
        """Whether a node's trailers end what another node may go on with."""
        if self.moving:
            return error.code not in _FINAL
        return error.code is Code.UNAVAILABLE and error.reason == _PARTING

    def parted(self, error: LayaError) -> None:
        """The node gave the stream up, or did not go on with it; its stream ends next."""
        self.error = error

    def left(self, unprocessed: bool) -> bool:
        """The node's stream is over: judge the node by what it said, if anything. Whether it died."""
        account = self._account
        said, self.error = self.error, None
        if said is None:
            account.node_lost(unprocessed)
            return not unprocessed
        if no_room(said):
            account.refused(said.retry_after)
        elif is_fault(said):
            account.node_failed()
        else:
            account.node_blameless()
        return False

    def arrived(self) -> None:
        """The new node has sent something new."""
        now = self._moves.loop.time()
        account, metrics = self._account, self._moves.metrics
        self.moving = False
        self._stalled += now - self._lost_at
        stall = now - self.last_at
        source, target, spent = _word(self.from_node), _word(account.node_id), int(stall * 1e3)
        told = f"from={source} to={target} stall_ms={spent}".encode()
        self.told = self.told + b"," + told if self.told else told
        logged = f"{source}>{target}:{spent}ms"
        self.logged = f"{self.logged},{logged}" if self.logged else logged
        metrics.moves.moved("moved")
        metrics.moves.stalled(stall)

    def completed(self) -> None:
        """Everything had been passed on when the node was lost; nothing had to move."""
        self._moves.metrics.moves.moved("complete")

    def progress(self) -> None:
        """The client has been given something."""
        self.last_at = self._moves.loop.time()
        if not self._innocent and len(self.journal.tokens) > self._at_start:
            self._innocent = True
            poisons = self._moves.poisons
            if len(poisons):
                poisons.lives(self.journal.request)

    # The end of a journey.

    def timed_out(self) -> LayaError:
        """It has been without a node for too long."""
        limit = self._moves.settings.max_stall
        return self.gave_up("stall", self._cannot(f"{limit:g} s passed without a node that went on with it"))

    def gave_up(self, outcome: str, error: LayaError) -> LayaError:
        """Count what the stream could not go on for; the error that says so."""
        self._moves.metrics.moves.moved(outcome)
        return error

    def _cannot(self, why: str) -> LayaError:
        journal = self.journal
        what = f"{len(journal.tokens)} tokens in {journal.messages} messages had been delivered"
        error = unavailable(
            f"Node {self.from_node} was lost in the middle of the answer, and {why}; {what}.", "NODE_LOST"
        )
        error.metadata = {
            "node": self.from_node,
            "retry_safe": "false",
            "delivered_tokens": str(len(journal.tokens)),
            "delivered_messages": str(journal.messages),
            "delivered_bytes": str(journal.body_bytes or journal.text_bytes),
            "not_migrated": why,
        }
        return error

    # Within.

    def _ask(self) -> Fields:
        """The original wishes, from where the stream stands."""
        done = len(self.journal.tokens)
        base = self._base
        if base is None:
            base = self._base = _base(self._account, self._model)
        out = base.copy()
        out.tenant, out.deadline = base.tenant, base.deadline
        out.prompt_tokens += done
        out.max_new_tokens = max(1, out.max_new_tokens - done)
        return out

    def _granted(self, reservation: Reservation) -> None:
        self._account.granted(reservation)
        self._on_grant(reservation)

    def _refused(self, error: LayaError) -> None:
        self._account.ticket = None
        self._on_refuse(self.gave_up("no_room", self._cannot(error.message.rstrip("."))))


def journal_value(headers: Headers) -> bytes:
    """What a node says of a journal; empty where it says nothing."""
    for name, value in headers:
        if name == JOURNAL:
            return value
    return b""


def stays(error: LayaError, why: str) -> LayaError:
    """The error of a stream that could not go on elsewhere, with the reason why."""
    if error.metadata is not None:
        error.metadata["not_migrated"] = why
    error.message = f"{error.message.rstrip('.')}; it cannot go on elsewhere: {why}."
    return error


def _base(account: Account, model: str) -> Fields:
    """What a stream's later nodes are asked for, before what is delivered is counted: the very pool that it is in."""
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


def _nobody(_: object) -> None:
    """Nobody waits."""
