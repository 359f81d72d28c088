"""Requests that wait, in two lanes: short prompts and long ones.

Each lane has an order of its own and a prefill budget of its own, so that a long prompt never stands in front of a
short one. Within a lane the lower priority number goes first, every ``ageing`` seconds of waiting counting as one
level; all age alike, so the order of two requests never changes while they wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import LayaError

if TYPE_CHECKING:
    from inference_node.admitted import Admitted

MAX_PRIORITY = 100  # priorities beyond ±100 are treated as ±100


@dataclass(frozen=True, slots=True)
class Need:
    """What a request asks for: the tokens of each of its prompts, new tokens per sequence, sequences per prompt."""

    prompts: Sequence[int]
    max_new_tokens: int
    n: int = 1

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens, each prompt once."""
        return sum(self.prompts)

    @property
    def sequences(self) -> int:
        """Sequences in all."""
        return self.n * len(self.prompts)


class Waiter:
    """One waiting request; ``settle`` is called once, with what became of it. ``cancel`` when nobody waits any more."""

    __slots__ = (
        "_key",
        "_left",
        "_settle",
        "asked",
        "blocks",
        "by_deadline",
        "expires",
        "lane",
        "need",
        "passed_blocks",
        "passed_sequences",
        "priority",
    )

    def __init__(
        self,
        lane: Lane,
        need: Need,
        blocks: int,
        priority: int,
        asked: float,
        order: tuple[float, int],
        settle: Callable[[Admitted | LayaError], None],
        left: Callable[[Waiter], None],
    ) -> None:
        self.lane = lane
        self.need = need
        self.blocks = blocks
        self.priority = priority
        self.asked = asked
        self.expires = 0.0
        self.by_deadline = False
        self.passed_blocks = 0
        """Blocks, and sequences, given to others that came later while this one was first in line and found no room."""
        self.passed_sequences = 0
        self._key = order
        self._settle: Callable[[Admitted | LayaError], None] | None = settle
        self._left = left

    def __lt__(self, other: Waiter) -> bool:
        return self._key < other._key

    @property
    def settled(self) -> bool:
        """Whether it has been admitted, refused or cancelled."""
        return self._settle is None

    def settle(self, outcome: Admitted | LayaError) -> None:
        """Hand the outcome over; later calls change nothing."""
        callback, self._settle = self._settle, None
        if callback is not None:
            callback(outcome)

    def cancel(self) -> None:
        """Leave the queue."""
        if self._settle is not None:
            self._settle = None
            self._left(self)


class Lane:
    """One lane: who waits in it, and how many prompt tokens of it are in prefill."""

    __slots__ = ("_queue", "blocks", "name", "prefill", "sequences", "tokens", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefill = 0
        """Prompt tokens admitted and not yet prefilled."""
        self.waiting = 0
        self.tokens = 0
        """Prompt tokens waiting."""
        self.blocks = 0
        """Blocks that those who wait ask for."""
        self.sequences = 0
        """And sequences."""
        self._queue: list[Waiter] = []  # heap; settled ones are dropped when they come up

    def __len__(self) -> int:
        """Entries kept, settled ones among them."""
        return len(self._queue)

    def push(self, waiter: Waiter) -> None:
        """Wait."""
        heapq.heappush(self._queue, waiter)
        self.waiting += 1
        self.tokens += waiter.need.prefill_tokens
        self.blocks += waiter.blocks
        self.sequences += waiter.need.sequences

    def leave(self, waiter: Waiter) -> None:
        """It waits no more. The heap is tidied now and then, so that cancelled ones do not pile up."""
        self.waiting -= 1
        self.tokens -= waiter.need.prefill_tokens
        self.blocks -= waiter.blocks
        self.sequences -= waiter.need.sequences
        queue = self._queue
        if queue and queue[0] is waiter:
            heapq.heappop(queue)
        elif len(queue) > 64 and len(queue) > 2 * self.waiting:
            self._queue = [w for w in queue if not w.settled and w is not waiter]
            heapq.heapify(self._queue)

    def head(self) -> Waiter | None:
        """Who is first."""
        queue = self._queue
        while queue and queue[0].settled:
            heapq.heappop(queue)
        return queue[0] if queue else None

    def goes_first(self, waiter: Waiter) -> bool:
        """Whether a newcomer would be first."""
        head = self.head()
        return head is None or waiter < head

    def live(self) -> list[Waiter]:
        """All who wait, in no order."""
        return [waiter for waiter in self._queue if not waiter.settled]


def first_of(one: Waiter | None, two: Waiter | None) -> tuple[Waiter | None, Waiter | None]:
    """The heads of two lanes in the order of their turn."""
    if one is None or (two is not None and two < one):
        return two, one
    return one, two


def order_of(priority: int, asked: float, ageing: float, number: int) -> tuple[float, int]:
    """What a waiter's turn goes by; ``number`` counts arrivals."""
    return asked + max(-MAX_PRIORITY, min(MAX_PRIORITY, priority)) * ageing, number
