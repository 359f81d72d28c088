"""Serves the lines: who gets the room that a report or an ended request has freed, and who has waited too long.

Every event that can free room on a node offers that node to its pool's line, and who comes to the front of a tenant's
line looks for a node. So between events no request near the front waits while a node that it may use has room. The
first in line is tried first. If it does not fit there, a few of those behind it may go ahead, but from then on one node
is kept free for it (the earmark), so small requests cannot starve a large one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

from router_node.dispatch import errors
from router_node.dispatch.pool import Pool
from router_node.dispatch.queue import Ticket
from router_node.dispatch.reservations import Reservation
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.types import UNLIMITED, NodeState

LOOK_AHEAD: Final = 8
"""Tickets tried on a node that has room: the first of so many tenants. Where fewer wait, newcomers may look too."""

_EARMARK_LOOKS: Final = 8


class WaitingRoom:
    """The tickets of all pools: their deadlines, and their way to a node."""

    __slots__ = (
        "_busy",
        "_caps",
        "_expiries",
        "_find",
        "_grant",
        "_moved",
        "_next",
        "_order",
        "_pace",
        "_pending",
        "_required",
        "_wake",
        "count",
    )

    def __init__(
        self,
        settings: DispatchSettings,
        grant: Callable[[Ticket, NodeState, float], Reservation],
        required: Callable[[Ticket], NodeState | None],
        find: Callable[[Ticket, float], NodeState | None],
        wake: Callable[[float], None] | None,
    ) -> None:
        self._grant = grant
        self._required = required
        self._find = find
        self._wake = wake
        self._pace = settings.pace
        self._expiries: list[tuple[float, int, Ticket]] = []
        self._caps: list[tuple[float, int, NodeState]] = []
        self._order = 0
        self._next: float | None = None  # when the owner will call expire()
        self._pending: dict[NodeState, None] = {}  # nodes to offer
        self._moved: deque[Ticket] = deque()  # tickets that have come to the front of their tenant's line
        self._busy = False
        self.count = 0
        """Tickets waiting."""

    def push(self, ticket: Ticket) -> None:
        """A ticket joins its pool's line."""
        ticket.pool.queue.push(ticket)
        self.count += 1
        if len(self._expiries) > 2 * self.count + 64:
            self._expiries = [entry for entry in self._expiries if entry[2].waiting]
            heapq.heapify(self._expiries)
        self._order += 1
        heapq.heappush(self._expiries, (ticket.expires, self._order, ticket))
        self._call_at(ticket.expires)

    def cancel(self, ticket: Ticket, now: float) -> None:
        """A ticket leaves its line unserved; what was kept for it goes to the others."""
        pool = ticket.pool
        self._leave(pool, ticket)
        pool.queue.remove(ticket)
        if ticket is pool.earmarked:
            self._let_go(pool, now)
        self._serve_all(now)

    def rest(self, node: NodeState) -> None:
        """A node's room is capped until ``node.cap_until``; afterwards it is offered again."""
        self._order += 1
        heapq.heappush(self._caps, (node.cap_until, self._order, node))
        self._call_at(node.cap_until)

    def expire(self, now: float) -> float | None:
        """Refuse who has waited too long, lift caps that are over. Returns when to call again, None for never."""
        self._next = now  # a wake-up while this runs would be premature: the return value covers it
        try:
            while self._caps and self._caps[0][0] <= now:
                self._lift(heapq.heappop(self._caps)[2], now)
            while self._expiries and self._expiries[0][0] <= now:
                ticket = heapq.heappop(self._expiries)[2]
                if ticket.waiting:
                    refusal = errors.waited_too_long(ticket, now)
                    self.cancel(ticket, now)
                    ticket.on_refuse(refusal)
            while self._expiries and not self._expiries[0][2].waiting:
                heapq.heappop(self._expiries)
        finally:
            soonest = [heap[0][0] for heap in (self._expiries, self._caps) if heap]
            self._next = min(soonest) if soonest else None
        return self._next

    def protect_head(self, pool: Pool, now: float) -> None:
        """Somebody may pass the first in line, which found no room: see that a node is kept free for it.

        Once a node is kept for a ticket it stays so until that is served or gone, whoever comes first meanwhile.
        """
        head = pool.queue.head()
        if head is None or pool.earmarked is not None:
            return
        only = self._required(head)
        for node in (only,) if only is not None else pool.rooms.last()[:_EARMARK_LOOKS]:
            if node.open and node.capacity >= node.need(head.total):
                pool.keep_for(head, node)
                return

    def kept_from(self, pool: Pool, priority: int, arrived: float) -> bool:
        """Whether the node kept free is so for this request too: for all that do not clearly go before its owner."""
        owner = pool.earmarked
        return (
            owner is None
            or priority >= owner.priority
            or pool.queue.rank(priority, arrived) >= pool.queue.rank(owner.priority, owner.arrived)
        )

    def taken_back(self, pool: Pool, priority: int, arrived: float, total: int) -> NodeState | None:
        """The node kept free, where a more urgent request may have it and fits."""
        node = pool.earmark
        if node is None or node.free < node.need(total) or not self.allows(node):
            return None
        return None if self.kept_from(pool, priority, arrived) else node

    def allows(self, node: NodeState) -> bool:
        """While requests wait, whether ``node`` should be sent one: it has nothing waiting, or little prefill ahead."""
        return node.backlog * node.inv_rate <= self._pace or (not node.waiting and not node.uncounted)

    def offer(self, node: NodeState, now: float) -> None:
        """``node`` may have room: give it to those who wait. Offers that callbacks cause are done in turn."""
        if node.pool is not None and node.pool.queue.count:
            self._pending[node] = None
            self._serve_all(now)

    def _serve_all(self, now: float) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._pending or self._moved:
                if self._moved:
                    self._place(self._moved.popleft(), now)
                    continue
                node = next(iter(self._pending))
                if node.pool is None or node.free <= 0 or not self._serve(node.pool, node, now):
                    self._pending.pop(node, None)
        finally:
            self._busy = False

    def _serve(self, pool: Pool, node: NodeState, now: float) -> bool:
        """Grant one ticket on ``node``; False when nobody near the front may have it."""
        if not self.allows(node):
            return False
        for tried, ticket in enumerate(pool.queue.ahead()):
            if tried == LOOK_AHEAD:
                break
            if not self._fits(ticket, node):
                continue
            if tried:
                self.protect_head(pool, now)
            if (
                pool.earmark is node
                and pool.earmarked is not ticket
                and self.kept_from(pool, ticket.priority, ticket.arrived)
            ):
                continue
            self._hand_over(pool, ticket, node, now)
            return True
        owner = pool.earmarked if pool.earmark is node else None
        if owner is None or not self._fits(owner, node):
            return False
        self._hand_over(pool, owner, node, now)
        return True

    def _fits(self, ticket: Ticket, node: NodeState) -> bool:
        return node.free >= node.need(ticket.total) and self._required(ticket) in (None, node)

    def _place(self, ticket: Ticket, now: float) -> None:
        """``ticket`` is the first of its tenant now: it may fit where those before it did not."""
        if not ticket.waiting:
            return
        pool = ticket.pool
        if pool.queue.head() is not ticket:
            self.protect_head(pool, now)
        node = self._find(ticket, now)
        if node is not None:
            self._hand_over(pool, ticket, node, now)

    def _hand_over(self, pool: Pool, ticket: Ticket, node: NodeState, now: float) -> None:
        self._leave(pool, ticket)
        pool.queue.take(ticket, now)
        if ticket is pool.earmarked:
            self._let_go(pool, now)
        reservation = self._grant(ticket, node, now)
        try:
            ticket.on_grant(reservation)
        except BaseException:
            reservation.end()
            raise

    def _leave(self, pool: Pool, ticket: Ticket) -> None:
        after = pool.queue.behind(ticket)
        if after is not None:
            self._moved.append(after)
        self.count -= 1

    def _let_go(self, pool: Pool, now: float) -> None:
        node = pool.earmark
        pool.keep_for(None, None)
        if node is not None:
            self.offer(node, now)

    def _lift(self, node: NodeState, now: float) -> None:
        if node.room_cap == UNLIMITED or node.pool is None:
            return
        if now < node.cap_until:
            self.rest(node)  # refused again meanwhile
            return
        node.pool.refresh(node, now)
        self.offer(node, now)

    def _call_at(self, when: float) -> None:
        if self._next is None or when < self._next:
            self._next = when
            if self._wake is not None:
                self._wake(when)
