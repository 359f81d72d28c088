"""Why a node takes nothing new. Each owner has one closing of its own, and withdraws it itself."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import LayaError, exhausted, unavailable


@dataclass(frozen=True, slots=True)
class _Closing:
    reason: str
    sheds: bool
    retry: float


class Closings:
    """The closings in force, in the order they came."""

    __slots__ = ("_all", "sheds")

    def __init__(self) -> None:
        self._all: dict[str, _Closing] = {}
        self.sheds = False
        """Whether one of them is for lack of room, so that who waits is not let in either."""

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def reason(self) -> str:
        """The oldest one's reason, empty while there is none."""
        return next((closing.reason for closing in self._all.values()), "")

    def add(self, owner: str, reason: str, sheds: bool, retry: float) -> None:
        """Close, or say another reason. ``retry`` is in seconds."""
        self._all[owner] = _Closing(reason, sheds, retry)
        self._sum_up()

    def withdraw(self, owner: str) -> bool:
        """Open again as far as this owner goes; whether it had closed."""
        gone = self._all.pop(owner, None) is not None
        self._sum_up()
        return gone

    def refusal(self) -> LayaError:
        """What a new request is told: UNAVAILABLE where the node goes away, else RESOURCE_EXHAUSTED."""
        closings = list(self._all.values())
        for closing in closings:
            if not closing.sheds:
                return unavailable(f"this node takes no new request: {closing.reason}", "DRAINING", closing.retry)
        reason, retry = closings[0].reason, closings[0].retry
        return exhausted(f"this node sheds load: {reason}; try again later", "OVERLOADED", retry)

    def _sum_up(self) -> None:
        self.sheds = any(closing.sheds for closing in self._all.values())
