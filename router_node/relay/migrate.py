"""Which streams may go on elsewhere when their node is lost: a worker's bounds, budgets and poisons.

A stream's own part is its ``Trip``, made when a node grants a journal. What moves the bytes is ``moving_stream`` for
gRPC and ``gateway.moving_relay`` for HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from router_node.dispatch.budget import RetryBudget
from router_node.relay.journal import Purse, first_charge
from router_node.relay.poison import Poisons, poisonous
from router_node.relay.settings import MigrationSettings
from shared import headers as names
from shared.errors import LayaError
from shared.net.api import Headers

if TYPE_CHECKING:
    import asyncio

    from router_node.admin.counters import RouterMetrics
    from router_node.dispatch import Pool
    from router_node.relay.account import Account

MAX_POOLS: Final = 1024  # with a budget of their own
GRANTED: Final = b"1"
ASKED: Final = (names.JOURNAL, b"1")
UNWANTED: Final = "the client said laya-no-migrate"
MIGRATABLE: Final = b"1"
FULL: Final = "the router's journals are full"


def never() -> bool:
    """For a loop that nobody watches."""
    return False


class Migrations:
    """One worker's. ``stood_still`` says whether its loop has only just gone on, so that nodes may have given it up."""

    __slots__ = ("_budgets", "_stood_still", "loop", "metrics", "poisons", "purse", "settings")

    def __init__(
        self,
        settings: MigrationSettings,
        loop: asyncio.AbstractEventLoop,
        metrics: RouterMetrics,
        stood_still: Callable[[], bool] = never,
    ) -> None:
        self._stood_still = stood_still
        self.settings = settings
        self.loop = loop
        self.metrics = metrics
        self.purse = Purse(settings.memory, metrics.moves)
        self.poisons = Poisons(settings.poison_seconds, loop.time)
        self._budgets: dict[str, tuple[Pool, RetryBudget]] = {}

    def unfit(self, size: int, unwanted: bool) -> str:
        """Why no journal is to be asked for, empty when one is.

        ``size`` is the request's length in bytes as far as it is known; ``unwanted``: its client said so.
        """
        if unwanted:
            return UNWANTED
        most = self.settings.max_request_bytes
        return f"the request is over {most} bytes" if size > most else ""

    def refusal(self, value: bytes, size: int) -> str:
        """Why a stream cannot go on elsewhere whose node answered ``value`` (``laya-journal``); empty when it can."""
        if value != GRANTED:
            return value.partition(b";")[2].strip()[:200].decode("ascii", "replace") or "the node keeps no journal"
        return self.unfit(size, False)

    def room(self, request: bytes) -> bool:
        """Take the first bytes of a journal."""
        return self.purse.take(first_charge(request))

    def note(self, why: str) -> bytes:
        """A stream is not migratable: count it, and say so to the client."""
        self.metrics.moves.keeps(why)
        return b"0; " + why.encode("ascii", "replace")

    def may_move(self, name: str, pool: Pool) -> bool:
        """Take one move from the budget of the pool with this name."""
        found = self._budgets.get(name)
        if found is None or found[0] is not pool:  # a new pool counts from the start
            if len(self._budgets) >= MAX_POOLS:
                self._budgets.clear()
            found = self._budgets[name] = (pool, RetryBudget(self.settings.share, self.settings.burst))
        return found[1].take(pool.sent)

    # Requests that nodes die of.

    def died(self, request: bytes, account: Account, heard: bool = False) -> bool:
        """The account's node was lost and had given the request nothing new; whether that was one death too many.

        ``heard``: it had answered something. No node has died that a router lost by standing still itself.
        """
        last = account.reservation
        if not request or last is None or self._stood_still():
            return False
        name = f"{last.node.id} {last.node.boot_id}"
        # One that has counted the request in a report had it too.
        return self.poisons.died(request, name, account.sent_at, account.core.clock(), heard or not last.held)

    def poisoned(self, request: bytes) -> bool:
        """Whether a new request is one that nodes have died of. Ask only while there are ``poisons``."""
        return bool(request) and self.poisons.known(request)

    def poisonous(self) -> LayaError:
        """Count a request that is refused for that; the error that says so."""
        self.metrics.moves.poisonous += 1
        return poisonous()


def journal_value(headers: Headers) -> bytes:
    """What a node says of a journal; empty where it says nothing."""
    for name, value in headers:
        if name == names.JOURNAL:
            return value
    return b""


def stays(error: LayaError, why: str) -> LayaError:
    """The error of a stream that could not go on elsewhere, with the reason why."""
    if error.metadata is not None:
        error.metadata["not_migrated"] = why
    error.message = f"{error.message.rstrip('.')}; it cannot go on elsewhere: {why}."
    return error
