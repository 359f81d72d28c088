"""The parts that keep sessions by ``router.mode``, put together for each kind of process.

A router of its own has a table and a store behind it. With workers, each has a table; the supervisor has the store, and
passes on what any of them says.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Literal

from router_node.admin.metrics import Snapshot
from router_node.node_side import NodeSide
from router_node.sessions.pins import Backlog, Pin, PinTable
from router_node.sessions.store import BATCH, GATHER, TTL, PinStore
from shared.config import Config

Mode = Literal["memory", "hybrid", "persistent"]

_WAITING: Final = 65_536  # pins that may wait for the store, or for the supervisor


def mode_of(config: Config) -> Mode:
    """How sessions are kept: as configured; where nothing is said, hybrid with a store and memory without one."""
    mode = config.router.mode
    if mode == "auto":
        return "hybrid" if config.server.redis else "memory"
    return mode


def pin_store(config: Config, take: Callable[[Sequence[Pin]], None]) -> PinStore | None:
    """The store of a router's pins, None where the mode or the configuration has none."""
    mode = mode_of(config)
    if mode == "memory" or not config.server.redis:
        return None
    return PinStore(
        config.server.redis,
        config.server.cluster,
        uuid.uuid4().hex,
        take,
        limit=max(_WAITING, config.router.cache_size),
        durable=mode == "persistent",
    )


class PinKeeper:
    """A process's own table, fed by its dispatcher. ``publish`` is given what others should know."""

    def __init__(self, config: Config, nodes: NodeSide, publish: Callable[[Pin], None]) -> None:
        self.table = PinTable(nodes.dispatcher, config.router.cache_size, publish)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        nodes.dispatcher.tell_sessions(self.table)
        nodes.membership.on_change.append(self.table.nodes_changed)
        self._rest()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self) -> None:
        self._timer = self._loop.call_later(TTL / 2, self._renew)

    def _renew(self) -> None:
        self.table.renew()
        self._rest()


class SessionSide:
    """Of a router without workers."""

    def __init__(self, config: Config, nodes: NodeSide) -> None:
        self._keeper: PinKeeper | None = None
        self._store = pin_store(config, self._take)
        if self._store is not None:
            self._keeper = PinKeeper(config, nodes, self._store.offer)

    async def start(self) -> None:
        """Begin to write and to follow; waits for nothing."""
        if self._store is not None:
            await self._store.start()

    async def close(self) -> None:
        """Write what is left, and stop."""
        if self._store is not None:
            await self._store.close()
        if self._keeper is not None:
            self._keeper.close()

    def trouble(self) -> str:
        """What keeps the mode's promise from being kept, "" for nothing."""
        return self._store.trouble if self._store is not None else ""

    def add_to(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what metrics show of sessions filled in."""
        if self._store is not None:
            snapshot.pins = counts(self._store)
            if self._keeper is not None:
                snapshot.pins["taken"] = self._keeper.table.taken
        return snapshot

    def _take(self, pins: Sequence[Pin]) -> None:
        if self._keeper is not None:
            self._keeper.table.take(pins)


def counts(store: PinStore) -> dict[str, int]:
    """What a store has done with pins."""
    return {
        "acknowledged": store.acknowledged,
        "pending": len(store.backlog),
        "dropped": store.backlog.dropped,
    }


class Relay:
    """Sends pins on in batches, as ``send`` takes them; between a worker and its supervisor."""

    def __init__(self, send: Callable[[list[Pin]], None]) -> None:
        self._send = send
        self._backlog = Backlog(_WAITING)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, pin: Pin) -> None:
        """One more, to go within a moment."""
        self._backlog.add(pin)
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER, self._flush)

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        while len(self._backlog):
            self._send(self._backlog.some(BATCH))
