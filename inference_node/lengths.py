"""Over-commit: holds by how long outputs really were of late, rather than by how long they might be. Pure.

Clients ask for far more new tokens than they use, so full holds leave KV unused. With over-commit a request holds its
prompt and the learned quantile of what requests like it produced. That waives the promise that nothing is preempted:
when many outputs are long at once, the engine runs out of blocks and starts some of them again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

from inference_node.engines.base import EngineStats, Finished

WINDOW = 512  # outputs remembered of each kind
LEAST = 64  # outputs that must be known before a hold follows them
KINDS = 24  # sizes asked for, by powers of two
PAUSE = 10.0  # seconds of full holds after a preemption


class Window:
    """The newest lengths of one kind of request, sorted as well."""

    __slots__ = ("_newest", "_sorted")

    def __init__(self) -> None:
        self._newest: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, length: int) -> None:
        """One more; the oldest makes room."""
        if len(self._newest) >= WINDOW:
            del self._sorted[bisect_left(self._sorted, self._newest.popleft())]
        self._newest.append(length)
        insort(self._sorted, length)

    def quantile(self, share: float) -> int:
        """The least length that covers this share of them."""
        rank = min(int(share * len(self._sorted)), len(self._sorted) - 1)
        return self._sorted[rank]


class Overcommit:
    """What a request is expected to need. Kinds are apart by lane and by the size that was asked for."""

    def __init__(
        self,
        quantile: float,
        long_prompt_tokens: int,
        capacity_blocks: int,
        stats: Callable[[], EngineStats],
        clock: Callable[[], float],
    ) -> None:
        """``stats`` are the engine's own, ``clock`` is in seconds."""
        self._quantile = quantile
        self._long = long_prompt_tokens
        self._capacity = capacity_blocks
        self._stats = stats
        self._clock = clock
        self._windows: dict[tuple[bool, int], Window] = {}
        self._preemptions = stats().preemptions
        self._full_until = 0.0

    @property
    def paused(self) -> bool:
        """Whether holds are full for now, because the engine has just preempted."""
        now = self._clock()
        preemptions = self._stats().preemptions
        if preemptions > self._preemptions:
            self._preemptions = preemptions
            self._full_until = now + PAUSE
        return now < self._full_until

    @property
    def known(self) -> int:
        """Outputs remembered."""
        return sum(map(len, self._windows.values()))

    def finished(self, end: Finished) -> None:
        """A sequence has ended by itself."""
        kind = self._kind(end.prompt_tokens, end.max_new_tokens)
        self._windows.setdefault(kind, Window()).add(min(end.new_tokens, end.max_new_tokens))

    def new_tokens(self, prompt: int, asked: int) -> int:
        """New tokens to hold for a sequence that asked for so many; all of them while too little is known."""
        window = self._windows.get(self._kind(prompt, asked))
        if window is None or len(window) < LEAST or self.paused:
            return asked
        return max(1, min(asked, window.quantile(self._quantile)))

    def has_room(self, blocks: int) -> bool:
        """Whether the engine's own gauge leaves room for so many blocks now: holds no longer say so."""
        return self._stats().kv_usage * self._capacity + blocks <= self._capacity

    def _kind(self, prompt: int, asked: int) -> tuple[bool, int]:
        return prompt > self._long, min(asked.bit_length(), KINDS)
