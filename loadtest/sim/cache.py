"""KV blocks of a simulated node with a prefix cache, in whole segments of a trace's block size.

Counts only: which blocks they are does not matter. A segment is known by an id that stands for all the text up to its
end. One that nobody uses stays findable until its room is needed; then the one unused for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class SegmentCache:
    """Segments of prompts, each ``size`` blocks, and how many blocks they take."""

    __slots__ = ("_refs", "_unused", "capacity", "evictions", "referenced", "size")

    def __init__(self, capacity: int, size: int) -> None:
        """``capacity`` and ``size`` are in blocks."""
        self.capacity = capacity
        self.size = size
        self.referenced = 0
        """Blocks of segments that somebody uses."""
        self.evictions = 0
        self._refs: dict[int, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    def find(self, ids: Sequence[int], most: int) -> int:
        """How many of the first ``most`` segments are here, without a gap from the first on."""
        refs, unused = self._refs, self._unused
        for at in range(min(most, len(ids))):
            key = ids[at]
            if key not in refs and key not in unused:
                return at
        return min(most, len(ids))

    def idle_of(self, ids: Sequence[int], count: int) -> int:
        """Of the first ``count`` segments, those that nobody uses now: taking them takes room."""
        return sum(ids[at] not in self._refs for at in range(count))

    def take(self, ids: Sequence[int], count: int) -> None:
        """Use the first ``count`` segments, which are here."""
        refs = self._refs
        for at in range(count):
            key = ids[at]
            users = refs.get(key, 0)
            if not users:
                del self._unused[key]
                self.referenced += self.size
            refs[key] = users + 1

    def publish(self, key: int) -> bool:
        """A segment has been computed and can be found from now on; False when another copy is known already."""
        if key in self._refs or key in self._unused:
            return False
        self._refs[key] = 1
        self.referenced += self.size
        return True

    def release(self, ids: Sequence[int]) -> None:
        """Use these segments no more; their ends are forgotten before their beginnings."""
        refs = self._refs
        for key in reversed(ids):
            users = refs[key] - 1
            if users:
                refs[key] = users
            else:
                del refs[key]
                self.referenced -= self.size
                self._unused[key] = None

    def keep_within(self, blocks: int) -> None:
        """Forget unused segments until they take no more than ``blocks``."""
        unused, size = self._unused, self.size
        while unused and len(unused) * size > blocks:
            unused.popitem(last=False)
            self.evictions += 1
