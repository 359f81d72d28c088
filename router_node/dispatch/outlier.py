"""Nodes that fail what they are sent, or are far slower than their like, rest for a while.

A node is ejected for failing several requests in a row, for failing a larger share of them than the rest of its pool,
or for first tokens that come many times later than theirs. It takes nothing for some seconds, more each time; then a
few requests, one at a time, show whether it is well again. However bad things look, a share of the pool always stays.

What is counted are failures, which are rare; successes are what else has ended, so they cost next to nothing. A
request whose client left, or that was given back unread, says nothing. One lost connection is one failure, however many
requests it took down. Times are seconds of the dispatcher's clock.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from router_node.dispatch.settings import DispatchSettings, OutlierSettings

if TYPE_CHECKING:
    from router_node.dispatch.pool import Pool
    from router_node.dispatch.reservations import Reservation
    from router_node.dispatch.types import NodeState

LOOK_EVERY: Final = 1.0  # seconds between two comparisons of a pool's nodes
PROBES: Final = 3  # requests that must end well before a node is trusted again
_WINDOW: Final = 10.0  # seconds over which shares of failures are compared
_ONE_LOSS: Final = 0.1  # seconds within which lost requests are one lost connection
_GAIN: Final = 0.1  # weight of the newest first token in the mean
_SLOWER_BY: Final = 0.5  # seconds by which first tokens must be late beside the factor


class Health:
    """What one node's requests have come to. The request path touches ``sent`` and ``answer``, nothing else."""

    __slots__ = (
        "answers",
        "ejected",
        "ejections",
        "failed",
        "good_at_failure",
        "lost_at",
        "neutral",
        "probing",
        "sent",
        "streak",
        "ttft",
        "until",
        "well_from",
        "why",
        "window_ended",
        "window_failed",
        "window_from",
    )

    def __init__(self) -> None:
        self.sent = 0
        """Requests sent to it since it became known."""
        self.failed = 0
        self.neutral = 0
        """Requests that say nothing of it."""
        self.ttft = 0.0
        """Mean time to the first token of late."""
        self.answers = 0
        """How many are in that mean."""
        self.streak = 0
        self.good_at_failure = -1
        self.lost_at = -1.0
        self.window_from = 0.0
        self.window_ended = 0
        self.window_failed = 0
        self.ejected = False
        """It takes nothing now."""
        self.probing = False
        """It takes one request at a time."""
        self.until = 0.0
        self.ejections = 0
        """In a row, without having been well between them."""
        self.well_from = 0
        self.why = ""

    def answer(self, seconds: float) -> None:
        """A first token came after so long."""
        answers = self.answers
        self.answers = answers + 1
        self.ttft += (seconds - self.ttft) * (_GAIN if answers > 10 else 1.0 / (answers + 1))


class Outliers:
    """Judges the nodes of every pool. Owned by one dispatcher."""

    __slots__ = ("_random", "_settings", "ejected_total")

    def __init__(self, settings: DispatchSettings, rng: random.Random) -> None:
        self._settings: OutlierSettings = settings.outlier
        self._random = rng.random
        self.ejected_total = 0
        """Ejections so far."""

    def failed(self, reservation: Reservation, now: float, lost: bool = False) -> None:
        """Its node failed this request; ``lost``: with its connection."""
        node = reservation.node
        health = node.health
        if reservation.judged:
            return
        reservation.judged = True
        if lost and now - health.lost_at < _ONE_LOSS:
            health.neutral += 1
            return
        if lost:
            health.lost_at = now
        good = good_of(node) - reservation.ended  # this one is not
        health.failed += 1
        health.streak = health.streak + 1 if good <= health.good_at_failure else 1
        health.good_at_failure = max(good, 0)
        if not self._settings.enabled:
            return
        if health.probing:
            self._eject(node, now, f"it failed a trial request after {health.why}")
        elif health.streak >= self._settings.consecutive_failures and not health.ejected:
            self._eject(node, now, f"it failed {health.streak} requests in a row")

    def neutral(self, reservation: Reservation) -> None:
        """Nothing follows from how this request ended."""
        if not reservation.judged:
            reservation.judged = True
            reservation.node.health.neutral += 1

    def look(self, node: NodeState, now: float) -> None:
        """It reports, so it lives: end its rest when that is over, and compare it with the others now and then."""
        health = node.health
        if health.ejected:
            if now >= health.until:
                health.ejected = False
                health.probing = True
                health.well_from = good_of(node)
        elif health.probing:
            if good_of(node) - health.well_from >= PROBES:
                health.probing = False
                health.ejections = 0
                health.streak = 0
                health.answers = 0
                health.ttft = 0.0
                health.why = ""
        elif self._settings.enabled and now - health.window_from >= LOOK_EVERY and node.pool is not None:
            self._compare(node, node.pool, now)

    def reset(self, node: NodeState) -> None:
        """Another process answers for the node."""
        sent = node.health.sent
        node.health = Health()
        node.health.sent = sent
        node.health.neutral = sent - node.mine  # nothing of the old one counts

    def _compare(self, node: NodeState, pool: Pool, now: float) -> None:
        health = node.health
        settings = self._settings
        ended, failed = _window(node)
        if ended >= settings.min_requests and failed:
            others = [_window(other) for other in pool.nodes.values() if other is not node]
            theirs = sum(one[1] for one in others) / max(1, sum(one[0] for one in others))
            share = failed / ended
            if share - theirs > settings.failure_share:
                self._eject(node, now, f"it failed {share:.0%} of its requests, others {theirs:.0%}")
                return
        if health.answers >= settings.min_requests:
            means = sorted(
                other.health.ttft
                for other in pool.nodes.values()
                if other is not node and other.health.answers >= settings.min_requests
            )
            if means:
                usual = means[len(means) // 2]
                if health.ttft > settings.latency_factor * usual + _SLOWER_BY:
                    self._eject(node, now, f"its first tokens took {health.ttft:.2f} s, others' {usual:.2f} s")
                    return
        if now - health.window_from >= _WINDOW:
            health.window_from = now
            health.window_ended = good_of(node) + health.failed
            health.window_failed = health.failed

    def _eject(self, node: NodeState, now: float, why: str) -> None:
        pool, health = node.pool, node.health
        if pool is None:
            return
        out = sum(1 for other in pool.nodes.values() if other.live and (other.health.ejected or other.health.probing))
        out -= node.live and (health.ejected or health.probing)
        if out + 1 > int(pool.live * self._settings.max_ejected_share):
            return
        rest = self._settings.rest * (1 << min(health.ejections, 16))
        rest = min(rest, self._settings.longest_rest) * (0.9 + 0.2 * self._random())
        health.until = now + rest
        health.ejected = True
        health.probing = False
        health.ejections += 1
        health.streak = 0
        health.why = why
        self.ejected_total += 1
        pool.refresh(node, now)


def good_of(node: NodeState) -> int:
    """Requests that a node has ended well."""
    health = node.health
    return health.sent - node.mine - health.failed - health.neutral


def _window(node: NodeState) -> tuple[int, int]:
    """Requests of the last seconds that say something, and those of them that failed."""
    health = node.health
    failed = health.failed - health.window_failed
    return max(failed, good_of(node) + health.failed - health.window_ended), failed
