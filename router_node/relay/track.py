"""When a request passed each point of the router, for the few that are timed or traced.

An account has a track only where somebody wants to know: one in ``EVERY`` is timed for the histograms, and a tracer
may sample more. All others pay for one look at ``account.track`` at each point. Times are the core's clock, in
seconds, and 0 until the point is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_node.admin.stages import StageTimes
    from router_node.tracing import Trace


class Track:
    """One request. ``timed``: its stages go into the histograms. ``trace`` is what is exported of it, if anything."""

    __slots__ = (
        "answered_at",
        "chosen_at",
        "done_at",
        "queued_at",
        "relay_in",
        "sent_at",
        "streams",
        "timed",
        "trace",
        "waited",
    )

    def __init__(self, timed: bool) -> None:
        self.timed = timed
        self.streams = False
        self.trace: Trace | None = None
        self.queued_at = self.waited = 0.0
        self.chosen_at = self.sent_at = self.answered_at = self.done_at = 0.0
        self.relay_in = -1.0

    def queued(self, now: float) -> None:
        """No node has room."""
        self.queued_at = now
        if self.trace is not None:
            self.trace.decided(now)

    def chosen(self, now: float) -> None:
        """There is a node, the first or another one."""
        if self.queued_at > 0.0:
            self.waited += now - self.queued_at
            if self.trace is not None:
                self.trace.waited(self.queued_at, now)
            self.queued_at = 0.0
        self.chosen_at = now
        if self.trace is not None:
            self.trace.decided(now)

    def sent(self, now: float, node: str) -> None:
        """The request's first byte goes to this node."""
        self.sent_at = now
        self.answered_at = self.done_at = 0.0
        if self.relay_in < 0.0:
            self.relay_in = now - self.chosen_at
        if self.trace is not None:
            self.trace.sent(self.chosen_at, node)

    def answered(self, now: float, streams: bool) -> None:
        """The node's answer begins; ``streams``: it comes piece by piece."""
        if self.answered_at == 0.0:
            self.answered_at = now
            self.streams = streams

    def done(self, now: float) -> None:
        """The last of the node's answer is here."""
        self.done_at = now

    def add_to(self, stages: StageTimes, routed: float, now: float) -> None:
        """Count the stages of a request that is over, those that it reached. ``routed`` is as in the account."""
        if not self.timed or self.relay_in < 0.0:
            return
        stages.add("match", max(0.0, routed - self.relay_in))
        stages.add("relay_in", self.relay_in)
        if self.waited > 0.0:
            stages.add("queue", self.waited)
        answered, done = self.answered_at, self.done_at
        if answered == 0.0 or done == 0.0:
            return
        if self.streams:
            stages.add("first", answered - self.sent_at)
            answered = done
        stages.add("node", answered - self.sent_at)
        stages.add("relay_out", now - answered)
