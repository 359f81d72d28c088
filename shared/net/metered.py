"""What a peer may cause that brings nobody anything: pings, pongs that nobody asked for, and the like."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.net.outflow import Outflow

if TYPE_CHECKING:
    from shared.net.budget import Budgets
    from shared.net.counters import NetCounters
    from shared.net.stream import StreamBase
    from shared.net.vitals import Vitals


class Metered(Outflow):
    """Events of a connection that only cost something; base of H2Connection."""

    __slots__ = ("_now", "budgets", "counters", "parting", "pings_out", "vitals")

    budgets: Budgets
    counters: NetCounters
    parting: bool
    pings_out: int  # PINGs of ours that the peer has yet to answer
    vitals: Vitals
    _now: Callable[[], float]

    @abstractmethod
    def calm(self, reason: str) -> None:
        """Cut off a peer that asks too much."""

    def on_reset_by_peer(self, stream: StreamBase | None) -> None:
        """A stream was reset by the peer; None when it was refused before it was one."""

    def on_ping(self) -> None:
        """The engine answers; we count."""
        if not self.budgets.pings.spend(self._now()):
            self.calm("ping_flood")

    def on_pong(self, payload: bytes) -> None:
        """The peer lives. It may not say so unasked for ever."""
        if self.pings_out:
            self.pings_out -= 1
            self.vitals.on_pong()
        else:
            self.on_oddity()

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The peer opens no more streams (a client), or takes no more (a server). It may say so twice or thrice."""
        if self.parting:
            self.on_oddity()
        self.parting = True
        self.counters.goaways_received += 1

    def on_oddity(self) -> None:
        """Legal, useless, and not to be repeated endlessly."""
        if not self.budgets.oddities.spend(self._now()):
            self.calm("oddity_flood")
