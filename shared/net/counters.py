"""Plain counts of what the network layer did and saw; a metrics page reads them whenever it likes."""

from __future__ import annotations


class NetCounters:
    """Totals since start. ``reasons`` holds rarer ends of connections and streams, by a fixed set of names."""

    __slots__ = (
        "connections_accepted",
        "connections_closed",
        "connections_dialled",
        "dials_failed",
        "goaways_received",
        "goaways_sent",
        "pings_sent",
        "reasons",
        "streams_accepted",
        "streams_opened",
        "streams_refused",
        "streams_reset",
        "turns_over",
    )

    def __init__(self) -> None:
        self.connections_accepted = 0
        self.connections_closed = 0
        self.connections_dialled = 0
        self.dials_failed = 0
        self.goaways_received = 0
        self.goaways_sent = 0
        self.pings_sent = 0
        self.streams_accepted = 0
        self.streams_opened = 0
        self.streams_refused = 0
        self.streams_reset = 0  # by peers
        self.turns_over = 0  # clients' connections that had to wait for their next turn
        self.reasons: dict[str, int] = {}

    def count(self, reason: str) -> None:
        """Add one to a reason. Callers pass literals, so the map stays small."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def totals(self) -> dict[str, int]:
        """All but the reasons, by name."""
        return {
            "connections_accepted": self.connections_accepted,
            "connections_closed": self.connections_closed,
            "connections_dialled": self.connections_dialled,
            "dials_failed": self.dials_failed,
            "goaways_received": self.goaways_received,
            "goaways_sent": self.goaways_sent,
            "pings_sent": self.pings_sent,
            "streams_accepted": self.streams_accepted,
            "streams_opened": self.streams_opened,
            "streams_refused": self.streams_refused,
            "streams_reset": self.streams_reset,
            "turns_over": self.turns_over,
        }
