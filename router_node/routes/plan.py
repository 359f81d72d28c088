"""One request's way along its rule: which pool now, which next, and what its node is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from router_node.dispatch import Dispatcher, Reservation, Ticket
from router_node.routes.legs import Leg
from shared import headers as names
from shared.errors import Code, LayaError, unavailable
from shared.net.api import Headers

if TYPE_CHECKING:
    from router_node.relay.fields import Fields
    from router_node.routes.live import LiveRoute

_Grant = Callable[[Reservation], None]
_Refuse = Callable[[LayaError], None]

# What another pool may make good: this one is empty, full, too small, or not there.
_ELSEWHERE: Final = frozenset((Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE))
_TOO_SMALL: Final = "NEVER_FITS"
_MISSING_RETRY: Final = 5.0  # seconds


class Plan:
    """Made for a request that a rule applies to. ``asked`` is the model that the client named."""

    __slots__ = ("_asked_tokens", "_at", "_legs", "asked", "max_attempts", "route", "tag", "timeout")

    def __init__(self, route: LiveRoute, fields: Fields, legs: Sequence[Leg], most: int) -> None:
        self.route = route
        self.asked = fields.model
        self.tag = route.tag
        """Which rule of which version, for the client."""
        self.timeout = route.timeout
        """Seconds for the whole request, 0 for no limit of the rule's own."""
        self.max_attempts = route.max_attempts or most
        self._asked_tokens = fields.max_new_tokens
        self._legs = legs
        self._at = 0

    @property
    def leg(self) -> Leg:
        """Where the request was sent last."""
        return self._legs[self._at]

    def submit(
        self, dispatcher: Dispatcher, fields: Fields, on_grant: _Grant, on_refuse: _Refuse
    ) -> Reservation | Ticket:
        """A node of the first pool that has room now; where none has, a place in the line of the first that may.

        Raises LayaError when no pool can take the request.
        """
        legs = self._legs
        waits = -1
        refusal: LayaError | None = None
        for at in range(self._at, len(legs)):
            self._set(at, fields)
            if not dispatcher.resolve(fields.model):
                refusal = refusal or self._missing()
                continue
            try:
                outcome = dispatcher.submit(fields, on_grant, on_refuse)
            except LayaError as error:
                if error.code not in _ELSEWHERE and error.reason != _TOO_SMALL:
                    raise
                refusal = refusal or error
                continue
            if isinstance(outcome, Reservation) or (at == len(legs) - 1 and waits < 0):
                return outcome
            outcome.cancel()
            if waits < 0:
                waits = at
        if waits < 0:
            raise refusal or unavailable(f"Route {self.route.name!r} leads nowhere.", "NO_NODE")
        self._set(waits, fields)
        return dispatcher.submit(fields, on_grant, on_refuse)

    def another(self, dispatcher: Dispatcher, fields: Fields, exclude: set[str]) -> Reservation | None:
        """A node of one of the pools that come after this one; None when none has room now."""
        before = self._at
        for at in range(before + 1, len(self._legs)):
            self._set(at, fields)
            try:
                outcome = dispatcher.submit(fields, _nothing, _nothing)
            except LayaError:
                continue
            if isinstance(outcome, Reservation) and outcome.node.id not in exclude:
                return outcome
            if isinstance(outcome, Ticket):
                outcome.cancel()
            else:
                outcome.end()
        self._set(before, fields)
        return None

    def mark(self, out: Headers) -> None:
        """Put into a node's headers what the leg changes."""
        leg = self._legs[self._at]
        if leg.clamps is not None:
            for at, pair in enumerate(out):
                if pair[0] == names.CLAMPS:
                    out[at] = (names.CLAMPS, leg.clamps)
        if leg.rewrite:
            out.append((names.REWRITE, leg.rewrite))
        elif self.asked.encode() != leg.pool_name:
            out.append((names.REWRITE, leg.pool_name))

    def _set(self, at: int, fields: Fields) -> None:
        self._at = at
        leg = self._legs[at]
        fields.model = leg.pool
        fields.max_new_tokens = leg.new_tokens(self._asked_tokens, fields.n)

    def _missing(self) -> LayaError:
        """A pool that does not exist yet is the operator's business, not the client's."""
        return unavailable(
            f"Route {self.route.name!r} leads to pool {self.leg.pool!r}, which no node serves yet; try again later.",
            "NO_NODE",
            _MISSING_RETRY,
        )


def _nothing(_: object) -> None:
    """Nobody waits for this."""
