"""What other routers have sent that no report shows yet. Routers do not talk; this is what one can tell by itself.

All routers get the same reports, equally late, so all would send their next requests to the same few idle nodes, and
find out together. How many requests of others there are for one of ours shows in the reports: the requests that nodes
have, less those that we sent. And of what others send, as much is not reported yet as of what we send, for one of them
as for us: so ``others`` times our own reservations is hidden, somewhere, on average.

Where that is worth mentioning, a node is not taken for the cheapest it seems, but drawn, with a chance that falls with
its cost: if all routers do so, the hidden work fills the cheapest nodes up to one level, like water (``level_of``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from router_node.dispatch.types import NodeState

FROM_OTHERS: Final = 0.25
"""Below so many requests of others for one of ours we are alone: a report is never quite up to date with us either."""
FROM_SECONDS: Final = 0.05
"""Less hidden work than this, in seconds of one node's time, is not worth a draw."""
AT_ONCE: Final = 1.35
"""Requests of others that may come to a node together with one of ours."""
MOST_OTHERS: Final = 64.0

_LEAST_TOLD: Final = 8
_OTHERS_GAIN: Final = 0.02
_OTHERS_MOST_GAIN: Final = 0.2
_SPARSE: Final = 0.1
_USUAL_GAIN: Final = 0.05
_SIZE_GAIN: Final = 0.02


class Unseen:
    """The sums over one pool's nodes."""

    __slots__ = ("_at", "_counted", "_reserved", "_told", "_usual", "others", "usual_total")

    def __init__(self) -> None:
        self.others = 0.0
        """Requests of other routers for each of ours, of late."""
        self.usual_total = 0.0
        """KV tokens of a request, prompt and new ones, on average of late."""
        self._at = math.inf
        self._told = 0
        self._counted = 0
        self._reserved = 0
        self._usual = 0.0

    @property
    def tokens(self) -> float:
        """Prompt tokens that others have likely sent and no report counts; 0 where we are alone."""
        others = self.others
        if others < FROM_OTHERS:
            return 0.0
        # In a burst now others likely are in one too, and what we have sent says more than what is usual.
        reserved, usual = self._reserved, self._usual
        return others * (reserved if reserved > usual else usual)

    def beside(self, total: int) -> int:
        """KV tokens that others' requests may take on a node that gets one of ours of ``total`` at the same time.

        They are of the usual size: a large request must not be kept from its cache for the sake of others as large,
        which nobody else sends.
        """
        usual = int(self.usual_total)
        return int((self.others if self.others < AT_ONCE else AT_ONCE) * (total if total < usual else usual))

    def sent(self, total: int) -> None:
        """A request of ``total`` KV tokens was sent."""
        usual = self.usual_total
        self.usual_total = usual + (total - usual) * _SIZE_GAIN if usual else float(total)

    def told(self, node: NodeState, now: float) -> None:
        """A node has reported."""
        told = node.running + node.waiting
        counted = node.mine - len(node.uncounted)
        self._told += told - node.summed_told
        self._counted += counted - node.summed_counted
        node.summed_told, node.summed_counted = told, counted
        if self._told >= _LEAST_TOLD or self._counted > 0:
            foreign = (self._told - self._counted) / (self._counted if self._counted > 1 else 1)
            foreign = 0.0 if foreign < 0.0 else MOST_OTHERS if foreign > MOST_OTHERS else foreign
            # Of few requests one alone, not yet told of as over, says too much; but that the others have gone shows.
            if self._told >= _LEAST_TOLD or foreign < self.others:
                # A few nodes report now and then: what they tell holds for as long, in seconds, as it took to come.
                apart = now - self._at
                gain = _OTHERS_GAIN if apart < _SPARSE else min(apart, _OTHERS_MOST_GAIN)
                self.others += (foreign - self.others) * gain
        self._at = now

    def settled(self, node: NodeState, sent: bool) -> None:
        """A node's reservations have changed; ``sent`` when one was added."""
        if sent:
            self._usual += (self._reserved - self._usual) * _USUAL_GAIN
        reserved = node.reserved_prompt_tokens
        self._reserved += reserved - node.summed_prompt
        node.summed_prompt = reserved

    def left(self, node: NodeState) -> None:
        """A node is gone."""
        self._told -= node.summed_told
        self._counted -= node.summed_counted
        self._reserved -= node.summed_prompt
        node.summed_told = node.summed_counted = node.summed_prompt = 0


def level_of(costs: Sequence[float], hidden: float) -> float:
    """How high ``hidden`` seconds of work fill nodes of these costs, lowest first, when poured over them."""
    total = hidden
    level = 0.0
    for count, cost in enumerate(costs):
        if count and level <= cost:
            break
        total += cost
        level = total / (count + 1)
    return level


def drawn(costs: Sequence[float], level: float, at: float) -> int:
    """Which of them, lowest first, a drop of the water falls on; ``at`` is from 0 to the amount of water."""
    for index, cost in enumerate(costs):
        at -= level - cost
        if at < 0.0:
            return index
        if level <= cost:
            break
    return 0
