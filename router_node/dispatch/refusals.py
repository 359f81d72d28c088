"""What a refusal teaches: a node that says RESOURCE_EXHAUSTED is believed at once, over its own reports.

For as long as it asks (a second at most the first time) the node is taken to have less room than the refused request
wanted, and a penalty on its cost falls off over twice that time. A node that refuses again before it has taken anything
is believed for longer, and the room it may claim is halved each time. So a node that lies about its headroom costs a
few refusals, not one per request; the first dispatch that it counts, or answers, clears its name.
"""

from __future__ import annotations

from typing import Final

from router_node.dispatch.reservations import Reservation
from router_node.dispatch.types import UNLIMITED, NodeState

FIRST_CAP: Final = 0.1
"""Seconds for which a refusal holds when the node gives no hint."""
MIN_CAP: Final = 0.05
MAX_CAP: Final = 5.0
"""Bounds of that time once it has doubled with each further refusal: seconds."""
MAX_HINT: Final = 1.0
"""A node's own hint counts up to so many seconds."""
FIRST_PENALTY: Final = 0.25
MAX_PENALTY: Final = 8.0
"""Seconds added to the cost of a node that has just refused once, and at most."""


def learn(node: NodeState, reservation: Reservation | None, retry_after: float | None, now: float) -> bool:
    """Cap the room of ``node`` and make it dearer for a while. Returns whether a cap was in force already."""
    hint = FIRST_CAP if retry_after is None or not retry_after > 0 else min(retry_after, MAX_HINT)
    again = min(node.refusals, 16)
    node.refusals += 1
    known = node.room_cap != UNLIMITED
    wanted = reservation.tokens if reservation is not None else node.free
    cap = max(0, min(node.room_cap, wanted - node.block))
    node.room_cap = cap >> 1 if again else cap
    span = min(MAX_CAP, max(MIN_CAP, hint) * (1 << again))
    node.cap_until = max(node.cap_until, now + span)
    node.penalty = min(MAX_PENALTY, FIRST_PENALTY * (1 << again))
    node.penalty_span = 2.0 * span
    node.penalty_until = now + 2.0 * span
    return known
