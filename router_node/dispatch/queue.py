"""The line of requests for which no node has room: strict by priority with ageing, fair between tenants.

* Between priorities, the lower number goes first, but every ``ageing`` seconds of waiting count as one level. All age
  alike, so the order of two requests never changes while they wait: it is that of ``priority * ageing + arrived``.
* Within a priority, tenants share by weight (self-clocked fair queueing over the tokens they ask for), so one tenant's
  thousand requests delay another's single one by one turn.
* Within a tenant, first come, first served.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from router_node.dispatch.reservations import Reservation
from router_node.dispatch.types import Ask
from shared.errors import LayaError

if TYPE_CHECKING:
    from router_node.dispatch.pool import Pool

MAX_PRIORITY: Final = 100
"""Priorities beyond +-100 are treated as +-100."""
RETRY_UNKNOWN: Final = 1.0
RETRY_MIN: Final = 0.1
RETRY_MAX: Final = 60.0
"""Bounds of a retry hint, and the hint while the drain rate is unknown: seconds."""

_GAP_GAIN: Final = 0.1


class Ticket:
    """A request that waits. ``cancel()`` takes it out of the line."""

    __slots__ = (
        "_flow",
        "_on_cancel",
        "arrived",
        "ask",
        "expires",
        "on_grant",
        "on_refuse",
        "pool",
        "priority",
        "prompt",
        "total",
    )

    def __init__(
        self,
        pool: Pool,
        ask: Ask,
        prompt: int,
        total: int,
        arrived: float,
        expires: float,
        on_grant: Callable[[Reservation], None],
        on_refuse: Callable[[LayaError], None],
        on_cancel: Callable[[Ticket], None],
    ) -> None:
        self.pool = pool
        self.ask = ask
        self.prompt = prompt
        """Prompt tokens, estimated."""
        self.total = total
        """KV tokens wanted, before rounding to blocks."""
        self.arrived = arrived
        self.expires = expires
        self.priority = _bounded(ask.priority)
        self.on_grant = on_grant
        self.on_refuse = on_refuse
        self._on_cancel = on_cancel
        self._flow: _Flow | None = None

    @property
    def waiting(self) -> bool:
        """It is in the line: neither granted, refused nor cancelled."""
        return self._flow is not None

    def cancel(self) -> None:
        """Leave the line; neither callback will be called. Calling it again, or after either, does nothing."""
        if self._flow is not None:
            self._on_cancel(self)


class _Flow:
    """One tenant within one priority."""

    __slots__ = ("level", "order", "tag", "tenant", "tickets")

    def __init__(self, level: _Level, tenant: str, order: int) -> None:
        self.level = level
        self.tenant = tenant
        self.order = order
        self.tag = 0.0  # virtual time at which its first ticket's turn ends
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()


class _Level:
    """One priority."""

    __slots__ = ("active", "clock", "fifo", "flows", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.clock = 0.0  # virtual time: the largest tag served
        self.flows: dict[str, _Flow] = {}
        self.active: list[tuple[float, int, _Flow]] = []  # flows with tickets, by tag
        self.fifo: OrderedDict[Ticket, None] = OrderedDict()  # every ticket, by arrival

    @property
    def oldest(self) -> Ticket:
        return next(iter(self.fifo))

    def heads(self) -> Iterator[Ticket]:
        """The first ticket of each tenant, in the order of their turns."""
        for _, _, flow in self.active:
            yield next(iter(flow.tickets))


class WaitQueue:
    """The line of one pool. The owner bounds its length."""

    __slots__ = ("_ageing", "_last_served", "_levels", "_mean_gap", "_order", "_weights", "count", "flows")

    def __init__(self, ageing: float, weights: Mapping[str, float]) -> None:
        self._ageing = ageing
        self._weights = weights
        self._levels: dict[int, _Level] = {}
        self._order = 0
        self._mean_gap = 0.0  # seconds between two grants while requests wait; 0 when unknown
        self._last_served: float | None = None
        self.count = 0
        """Tickets waiting."""
        self.flows = 0
        """Tenants waiting, each once for every priority."""

    def __len__(self) -> int:
        return self.count

    def holds(self, ask: Ask) -> bool:
        """A request of the same tenant and priority waits: ``ask`` must come after it."""
        level = self._levels.get(_bounded(ask.priority))
        return level is not None and ask.tenant in level.flows

    def push(self, ticket: Ticket) -> None:
        """Join the line. Tickets must come in the order of ``arrived``, or nearly so."""
        level = self._levels.get(ticket.priority)
        if level is None:
            level = self._levels[ticket.priority] = _Level(ticket.priority)
        tenant = ticket.ask.tenant
        flow = level.flows.get(tenant)
        if flow is None:
            self._order += 1
            flow = level.flows[tenant] = _Flow(level, tenant, self._order)
            self.flows += 1
            # A tenant that was away gets no credit for it: its turn ends one request's worth after the present.
            flow.tag = level.clock + ticket.total / self._weights.get(tenant, 1.0)
            insort(level.active, (flow.tag, flow.order, flow))
        flow.tickets[ticket] = None
        level.fifo[ticket] = None
        ticket._flow = flow
        self.count += 1

    def remove(self, ticket: Ticket) -> None:
        """Leave the line; a ticket that is not in it is nothing. Constant time but for a bisect over the tenants."""
        flow = ticket._flow
        if flow is None:
            return
        ticket._flow = None
        level = flow.level
        del flow.tickets[ticket]
        del level.fifo[ticket]
        if not flow.tickets:
            del level.active[bisect_left(level.active, (flow.tag, flow.order, flow))]
            del level.flows[flow.tenant]
            self.flows -= 1
            if not level.fifo:
                del self._levels[level.priority]
        self.count -= 1
        if not self.count:
            self._last_served = None

    def take(self, ticket: Ticket, now: float) -> None:
        """The ticket is served: it leaves the line, its tenant is charged, and the drain rate learns of it."""
        flow = ticket._flow
        if flow is None:
            return
        level = flow.level
        level.clock = max(level.clock, flow.tag)
        after = self.behind(ticket)
        if after is not None:
            del level.active[bisect_left(level.active, (flow.tag, flow.order, flow))]
            flow.tag += after.total / self._weights.get(flow.tenant, 1.0)
            insort(level.active, (flow.tag, flow.order, flow))
        last, self._last_served = self._last_served, now
        if last is not None:
            gap = max(0.0, now - last)
            self._mean_gap += (gap - self._mean_gap) * (_GAP_GAIN if self._mean_gap else 1.0)
        self.remove(ticket)

    def behind(self, ticket: Ticket) -> Ticket | None:
        """Who will be first of its tenant when ``ticket``, which is that now, leaves; else None."""
        flow = ticket._flow
        if flow is None:
            return None
        tickets = iter(flow.tickets)
        return next(tickets, None) if next(tickets) is ticket else None

    def head(self) -> Ticket | None:
        """Who is next."""
        return next(self.ahead(), None)

    def ahead(self) -> Iterator[Ticket]:
        """Who is next, then whom to try if that one does not fit: the first of each other tenant, in order.

        Not to be used further once the line has changed.
        """
        if len(self._levels) == 1:
            for level in self._levels.values():
                yield from level.heads()
            return
        ordered = [self._levels[priority] for priority in sorted(self._levels)]
        aged: set[Ticket] = set()
        if ordered:
            # Age brings single tickets of later priorities to the front, the most overdue first, whosever turn it is.
            first = self._key(ordered[0].oldest)
            overdue = [level.oldest for level in ordered[1:] if self._key(level.oldest) < first]
            overdue.sort(key=self._key)
            yield from overdue
            aged.update(overdue)
        for level in ordered:
            for ticket in level.heads():
                if ticket not in aged:
                    yield ticket

    def tickets(self) -> list[Ticket]:
        """All who wait, in no particular order."""
        return [ticket for level in self._levels.values() for ticket in level.fifo]

    def retry_after(self) -> float:
        """Seconds after which the line, as long as it is now, will have drained."""
        if not self._mean_gap:
            return RETRY_UNKNOWN
        return min(RETRY_MAX, max(RETRY_MIN, (self.count + 1) * self._mean_gap))

    def rank(self, priority: int, arrived: float) -> float:
        """Lower goes first: priority and age in one number."""
        return priority * self._ageing + arrived

    def _key(self, ticket: Ticket) -> float:
        return ticket.priority * self._ageing + ticket.arrived


def _bounded(priority: int) -> int:
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))
