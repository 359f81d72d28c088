"""The dispatcher: which node runs this request, or how long it waits. Everything else in this package serves it.

One event loop owns one dispatcher and makes every call; nothing here blocks, does I/O or logs. Callbacks run inside the
call that caused them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container

from router_node.dispatch import errors, explain, learning, refusals, reports
from router_node.dispatch.affinity import NO_KEYS, Keys, Pins
from router_node.dispatch.outlier import Outliers
from router_node.dispatch.picker import Picker
from router_node.dispatch.pool import Pool
from router_node.dispatch.queue import Ticket
from router_node.dispatch.registry import ModelInfo, Registry
from router_node.dispatch.reservations import Reservation
from router_node.dispatch.sent import Sent
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.told import ReportLike, Verdict
from router_node.dispatch.types import Ask, Candidate, NodeSpec, NodeState
from router_node.dispatch.waiting import LOOK_AHEAD, WaitingRoom
from shared.errors import LayaError
from shared.numbered import Numbered


class Dispatcher:
    """Chooses nodes by least expected time to the first token, and keeps count of what it has sent where.

    ``worker_id`` is unique to this worker and its boot: dispatch ids begin with it. ``clock`` gives monotonic seconds.
    ``wake(at)`` is called when ``expire`` must run earlier than it last said.
    """

    def __init__(
        self,
        worker_id: str,
        settings: DispatchSettings,
        clock: Callable[[], float],
        *,
        rng: random.Random | None = None,
        wake: Callable[[float], None] | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.settings = settings
        self._clock = clock
        self._ids = Numbered(f"{worker_id}-")
        self._registry = Registry(settings)
        rng = rng or random.Random()
        self.outliers = Outliers(settings, rng)
        self._picker = Picker(settings, rng, self._registry)
        self._sent = Sent()
        self.resolve: Callable[[str], tuple[Pool, ...]] = self._registry.resolve
        """The pools behind a model or alias, the one to use first; empty when the name is unknown."""
        self._waiting = WaitingRoom(settings, self._grant_ticket, self._required, self._find, wake)

    # Requests.

    def submit(
        self, ask: Ask, on_grant: Callable[[Reservation], None], on_refuse: Callable[[LayaError], None]
    ) -> Reservation | Ticket:
        """A node for ``ask`` now, or a place in the line.

        A Reservation is the normal case, and then neither callback is ever called. With a Ticket exactly one of them is
        called later, unless the ticket is cancelled first. Raises LayaError for what cannot be served: NOT_FOUND,
        UNAVAILABLE (no live node), INVALID_ARGUMENT (never fits), RESOURCE_EXHAUSTED (the line is full),
        DEADLINE_EXCEEDED.
        """
        now = self._clock()
        pools = self.resolve(ask.model)
        if not pools:
            raise errors.model_not_found(ask.model, self._registry.names())
        pool = pools[0]
        if not pool.live:
            raise errors.no_node(pool)
        if ask.deadline is not None and ask.deadline <= now:
            raise errors.past_deadline()
        prompt = ask.prompt_tokens
        if prompt <= 0 or ask.prompt_bytes:
            prompt = pool.prompt_tokens(ask)
        total = prompt + (ask.max_new_tokens or pool.default_max_tokens)
        if total > pool.safe_total or ask.n > 1:
            total = self._total(pool, ask, prompt)
        waiting = pool.queue.count
        if not waiting or self._may_look(pool, ask):
            if waiting:
                self._waiting.protect_head(pool, now)
            keys = self._picker.keys(pool, ask)
            chosen = self._picker.choose(pool, keys, prompt, total, now)
            if waiting or ask.refusals:
                chosen = self._beside_others(pool, keys, prompt, total, now, chosen, ask.priority, ask.arrived or now)
            if chosen is not None:
                return self._grant(pool, ask, keys, prompt, total, chosen)
        if self._waiting.count >= self.settings.max_queued:
            raise errors.queue_full(pool, self.settings.max_queued)
        arrived = ask.arrived or now
        expires = now + self.settings.timeout
        if ask.deadline is not None and ask.deadline < expires:
            expires = ask.deadline
        ticket = Ticket(pool, ask, prompt, total, arrived, expires, on_grant, on_refuse, self._cancelled)
        self._waiting.push(ticket)
        return ticket

    def retry(self, reservation: Reservation, exclude: Container[str], ask: Ask | None = None) -> Reservation | None:
        """End ``reservation`` and grant its ask, or ``ask``, on a node not in ``exclude``; None when none has room now.

        It does not go back into the line: it has been through it. ``submit`` the ask again to wait.
        """
        self.outliers.neutral(reservation)
        reservation.end()
        ask = reservation.ask if ask is None else ask
        pools = self.resolve(ask.model)
        if not pools or not pools[0].live:
            return None
        pool = pools[0]
        prompt = pool.prompt_tokens(ask)
        total = self._total(pool, ask, prompt)
        keys = self._picker.keys(pool, ask)
        chosen = self._picker.choose(pool, keys, prompt, total, self._clock(), exclude)
        if chosen is None or (ask.refusals and not self._waiting.allows(chosen[0])):
            return None  # rather than be refused again it waits, if it may
        again = self._grant(pool, ask, keys, prompt, total, chosen)
        again.waited = reservation.waited
        return again

    def may_retry(self, reservation: Reservation) -> bool:
        """Whether the pool's budget has a retry left for a request that was sent; takes it."""
        pool = reservation.node.pool
        if pool is None:  # the node has left since; those that stay are asked
            pools = self.resolve(reservation.ask.model)
            if not pools:
                return True
            pool = pools[0]
        return pool.budget.take(pool.sent)

    def others(self, reservation: Reservation, tried: Container[str]) -> bool:
        """Whether any node that was not tried may take the request, now or soon."""
        pools = self.resolve(reservation.ask.model)
        mine = reservation.node.id
        return bool(pools) and any(n.live and n.id != mine and n.id not in tried for n in pools[0].nodes.values())

    def on_refused(self, refused: Reservation | str, retry_after: float | None = None) -> None:
        """A node answered RESOURCE_EXHAUSTED: believe it at once, over its reports. Ends the reservation.

        Pass the reservation where there is one, else the node's id; ``retry_after`` is the node's own hint in seconds.
        """
        now = self._clock()
        node = self._registry.nodes.get(refused) if isinstance(refused, str) else refused.node
        reservation = None if isinstance(refused, str) else refused
        if node is not None and node.pool is not None:
            known = refusals.learn(node, reservation, retry_after, now)
            if not known:
                self._waiting.rest(node)
            node.pool.refresh(node, now)
        if reservation is not None:
            reservation.ask.refusals += 1
            self.outliers.neutral(reservation)
            self._sent.forget(reservation)
            self._forget(reservation)
            reservation.end()

    def observe(self, reservation: Reservation, prompt_tokens: int, cached_tokens: int) -> None:
        """The node's true counts for a request, where they do not come in its reports. Once per request."""
        learning.observe(reservation, prompt_tokens, cached_tokens)

    def expire(self, now: float) -> float | None:
        """Refuse who has waited too long. Returns when to call again, None while nothing is pending (see ``wake``)."""
        return self._waiting.expire(now)

    def explain(self, ask: Ask, limit: int = 64) -> explain.Explanation:
        """Which node ``ask`` would go to now, and why. No side effects.

        Exact while nobody waits. While others do, it is what would be tried first: a node may yet be kept free for one
        of them. Raises LayaError for an unknown model and for a request that can never fit.
        """
        now = self._clock()
        pool = self._pool(ask.model)
        prompt = pool.prompt_tokens(ask)
        total = self._total(pool, ask, prompt)
        keys = self._picker.keys(pool, ask)
        ahead = pool.queue.count
        waits = f"{ahead} others wait before it" if ahead and not self._may_look(pool, ask) else ""
        return explain.explain(self._picker, pool, keys, prompt, total, now, waits, limit)

    # Nodes.

    def add_node(self, node_id: str, address: str, spec: NodeSpec) -> NodeState:
        """Make a node known, or bring what is known up to date. It serves once its link is up and it has reported."""
        now = self._clock()
        node = self._registry.add(node_id, address, spec, now)
        self._refresh(node)
        self._waiting.offer(node, now)
        return node

    def remove_node(self, node_id: str) -> None:
        """Forget a node; an unknown one is nothing. Its reservations end as their streams do."""
        node = self._registry.remove(node_id, self._clock())
        if node is not None:
            self._picker.prefixes.lose(node.slot)

    def set_link(self, node_id: str, up: bool) -> None:
        """The connection to a node is up or down."""
        node = self._registry.nodes.get(node_id)
        if node is not None and node.link_up != up:
            node.link_up = up
            self._refresh(node)

    def set_serving(self, node_id: str, serving: bool) -> None:
        """What a node's health service says."""
        node = self._registry.nodes.get(node_id)
        if node is not None and node.serving != serving:
            node.serving = serving
            self._refresh(node)

    def on_watch_reset(self, node_id: str) -> None:
        """A new Watch of a node begins; no report of the old one may follow."""
        node = self._registry.nodes.get(node_id)
        if node is not None:
            reports.watch_reset(node)

    def on_report(self, node_id: str, report: ReportLike) -> Verdict:
        """A node reports. Never raises for what it says; see ``Verdict``."""
        node = self._registry.nodes.get(node_id)
        if node is None:
            return Verdict.UNKNOWN
        capacity = node.capacity
        usages, evictions = report.usages, report.evictions
        if usages:
            self._sent.used(node, usages)
        if evictions:
            self._sent.evicted(node, evictions, self._picker.prefixes)
        now = self._clock()
        verdict, reborn = reports.apply(node, report, now)
        if verdict is Verdict.WAITING_FULL:
            return verdict
        if reborn:
            self.outliers.reset(node)
            self._registry.renew(node)
            self._picker.prefixes.lose(node.slot)
            node.trust = 1.0
            node.refusals = 0
        if node.capacity != capacity and node.pool is not None:
            node.pool.safe_total = 0
        self.outliers.look(node, now)
        self._refresh(node)
        return verdict

    # Sessions that others know of.

    def tell_sessions(self, pins: Pins | None) -> None:
        """Tell ``pins`` where each session goes from now on."""
        self._picker.pins = pins

    def pin(self, key: int, node_id: str, tokens: int) -> int:
        """Another router has sent a session, by its hash, to a node. Its incarnation; 0 for a node not known here."""
        node = self._registry.nodes.get(node_id)
        if node is None:
            return 0
        self._picker.sessions.record(key, node.incarnation, tokens)
        return node.incarnation

    # What there is.

    def models(self) -> list[ModelInfo]:
        """Models that have nodes, by name."""
        return self._registry.models()

    def nodes(self) -> list[NodeState]:
        """Every node, by id."""
        return [node for _, node in sorted(self._registry.nodes.items())]

    def node(self, node_id: str) -> NodeState | None:
        """One node."""
        return self._registry.nodes.get(node_id)

    @property
    def ready(self) -> bool:
        """Some node takes requests now or soon."""
        return any(node.live for node in self._registry.nodes.values())

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._waiting.count

    @property
    def reserved_tokens(self) -> int:
        """KV tokens of all reservations that no report has counted; 0 at rest."""
        return self._registry.reserved_tokens()

    # Within.

    def _pool(self, model: str) -> Pool:
        pools = self.resolve(model)
        if not pools:
            raise errors.model_not_found(model, self._registry.names())
        return pools[0]

    def _total(self, pool: Pool, ask: Ask, prompt: int) -> int:
        """KV tokens to hold, at most what the largest node has. Raises LayaError when no node can ever hold them."""
        if not pool.safe_total:
            pool.survey()
        new = ask.max_new_tokens or pool.default_max_tokens
        if prompt + new <= pool.safe_total and ask.n <= 1:
            return prompt + new
        return errors.checked_total(pool, ask, prompt, new)

    def _grant(self, pool: Pool, ask: Ask, keys: Keys, prompt: int, total: int, chosen: Candidate) -> Reservation:
        node = chosen[0]
        cached = int(chosen[1] * node.trust) if chosen[1] else 0
        reservation = Reservation(
            self._ids.next(), ask, chosen, total + -total % node.block, prompt - cached, self._ended
        )
        pool.sent += 1
        pool.unseen.sent(total)
        pool.settle(node, shrunk=True)
        self._sent.granted(reservation)
        if keys is not NO_KEYS:
            reservation.chain = keys[2]
            reservation.known_blocks = self._picker.record(keys, node, prompt)
        return reservation

    def _grant_ticket(self, ticket: Ticket, node: NodeState, now: float) -> Reservation:
        pool = ticket.pool
        keys = self._picker.keys(pool, ticket.ask)
        chosen = self._picker.expected(pool, keys, node, ticket.prompt)
        reservation = self._grant(pool, ticket.ask, keys, ticket.prompt, ticket.total, chosen)
        reservation.waited = max(0.0, now - ticket.arrived)
        return reservation

    def _required(self, ticket: Ticket) -> NodeState | None:
        if not self.settings.require_session_affinity or not ticket.ask.session:
            return None
        return self._picker.required(ticket.pool, self._picker.keys(ticket.pool, ticket.ask))

    def _may_look(self, pool: Pool, ask: Ask) -> bool:
        """While others wait, whether a newcomer is near enough to the front to look for a node of its own."""
        return pool.queue.flows < LOOK_AHEAD and not pool.queue.holds(ask)

    def _beside_others(
        self,
        pool: Pool,
        keys: Keys,
        prompt: int,
        total: int,
        now: float,
        chosen: Candidate | None,
        priority: int,
        arrived: float,
    ) -> Candidate | None:
        """What a newcomer may have while others wait: ``chosen`` or the next best, if that is not ahead of its pace;
        or the node that is kept free for one who is less urgent."""
        allows = self._waiting.allows
        if chosen is not None and not allows(chosen[0]):
            chosen = self._picker.choose(pool, keys, prompt, total, now, (chosen[0].id,))
            if chosen is not None and not allows(chosen[0]):
                chosen = None
        if chosen is None:
            node = self._waiting.taken_back(pool, priority, arrived, total)
            if node is not None and self._picker.required(pool, keys) in (None, node):
                return self._picker.expected(pool, keys, node, prompt)
        return chosen

    def _find(self, ticket: Ticket, now: float) -> NodeState | None:
        """A node for a ticket that has come to the front of its tenant's line."""
        pool = ticket.pool
        keys = self._picker.keys(pool, ticket.ask)
        chosen = self._picker.choose(pool, keys, ticket.prompt, ticket.total, now)
        chosen = self._beside_others(
            pool, keys, ticket.prompt, ticket.total, now, chosen, ticket.priority, ticket.arrived
        )
        return chosen[0] if chosen is not None else None

    def _cancelled(self, ticket: Ticket) -> None:
        self._waiting.cancel(ticket, self._clock())

    def _ended(self, reservation: Reservation) -> None:
        node = reservation.node
        pool = node.pool
        if pool is None:
            self._registry.settled(node)
            return
        pool.settle(node)
        if pool.queue.count:
            self._waiting.offer(node, self._clock())

    def _refresh(self, node: NodeState) -> None:
        pool = node.pool
        if pool is not None:
            now = self._clock()
            pool.refresh(node, now)
            if pool.queue.count:
                self._waiting.offer(node, now)

    def _forget(self, reservation: Reservation) -> None:
        """The node did not take the request, so it holds nothing of its prompt beyond what it held before."""
        if reservation.chain and reservation.node.pool is not None:
            self._picker.prefixes.forget(reservation.chain, reservation.node.slot, reservation.known_blocks)
