"""Where nodes come from: the seam between membership and each way of finding nodes.

A source says which nodes there should be. It never says whether they work: that is what the link to each node finds
out. So a source that is wrong, late or away costs new knowledge, never a request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that a source knows of; all but the address is empty when the source knows no more (a static node)."""

    address: str
    node_id: str = ""
    boot_id: str = ""
    model: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """``up`` is False while the source cannot be read; ``detail`` is one sentence then, empty otherwise."""

    up: bool
    detail: str = ""


# A source's whole view at one moment; it replaces the one before.
Snapshot = tuple[Candidate, ...]
Publish = Callable[[Snapshot], None]


class Source(ABC):
    """One way of finding nodes. Membership owns it: ``start`` once, ``health`` at any time, then ``close`` once."""

    name: str  # "static", "redis": shown to operators, labels metrics

    @abstractmethod
    async def start(self, publish: Publish) -> None:
        """Begin to look, and call ``publish`` with the whole view whenever it changes, from the event loop.

        Called once, before the router listens, so it must return without waiting for anything remote: what takes
        time goes into a task that the source owns. A source that cannot be read does not raise and does not publish:
        silence keeps the last view. An empty view is published only when the source was read and is empty.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop looking and release everything, within a few seconds. Called once, even when ``start`` failed."""

    @abstractmethod
    def health(self) -> SourceHealth:
        """How reading goes. Called on each scrape and for readiness; it must not block."""

    def rejections(self) -> Mapping[str, int]:
        """Records that were refused since the start, by reason. Called on each scrape."""
        return {}

    def look_now(self) -> None:  # noqa: B027 - most sources have nothing to do
        """Read again soon. Called when a link was lost, since its node may have moved; it may be ignored."""
