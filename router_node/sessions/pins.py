"""The sessions of one process that are elsewhere than the ring has them, and what is known of others' from afar.

A session on the ring's own node is found by every router with no word said. One that load, a drain or a change of the
ring has put elsewhere is a pin: it is published once, again when it moves or its prompt has doubled, and again when
half of its time to live is over and it is still in use. All of it is bounded: what is lost costs one cold prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from router_node.dispatch import Dispatcher, NodeState


class Pin(NamedTuple):
    """A session's hash, the node that holds its cache, and the tokens that it has seen there."""

    key: int
    node_id: str
    tokens: int


MAX_TOKENS: Final = 2**28 - 1


class PinTable:
    """``publish`` is given what others should know; ``limit`` bounds what is remembered of each kind."""

    __slots__ = ("_dispatcher", "_limit", "_pinned", "_publish", "_round", "_waiting", "_waiting_count", "taken")

    def __init__(self, dispatcher: Dispatcher, limit: int, publish: Callable[[Pin], None]) -> None:
        self._dispatcher = dispatcher
        self._limit = limit
        self._publish = publish
        self._round = 0
        self._pinned: dict[int, tuple[int, int, int]] = {}  # hash -> incarnation, tokens, round of its publication
        self._waiting: dict[str, dict[int, int]] = {}  # node id -> hash -> tokens: nodes that are not known yet
        self._waiting_count = 0
        self.taken = 0
        """Pins that were taken from others."""

    def __len__(self) -> int:
        """Pins remembered."""
        return len(self._pinned)

    def note(self, key: int, node: NodeState, tokens: int) -> None:
        """See ``router_node.dispatch.picker.Pins``."""
        known = self._pinned.get(key)
        if known is None:
            pool = node.pool
            if pool is None or pool.ring.lookup(key) == node.slot:
                return
        elif known[0] == node.incarnation and tokens <= 2 * known[1] and known[2] == self._round:
            return
        self._remember(key, node.incarnation, tokens)
        self._publish(Pin(key, node.id, min(tokens, MAX_TOKENS)))

    def take(self, pins: Iterable[Pin]) -> None:
        """Another router, or an earlier life of this one, has sent these sessions where they say."""
        for pin in pins:
            self.taken += 1
            incarnation = self._dispatcher.pin(pin.key, pin.node_id, pin.tokens)
            if incarnation:
                self._remember(pin.key, incarnation, pin.tokens)
            else:
                self._wait(pin)

    def nodes_changed(self) -> None:
        """Nodes have come: those that pins wait for may be among them."""
        for node_id in [node_id for node_id in self._waiting if self._dispatcher.node(node_id) is not None]:
            held = self._waiting.pop(node_id)
            self._waiting_count -= len(held)
            self.take(Pin(key, node_id, tokens) for key, tokens in held.items())

    def renew(self) -> None:
        """Half of a pin's time to live has passed: those still in use are published again."""
        self._round += 1

    def _remember(self, key: int, incarnation: int, tokens: int) -> None:
        pinned = self._pinned
        if key not in pinned and len(pinned) >= self._limit:
            del pinned[next(iter(pinned))]
        pinned[key] = (incarnation, tokens, self._round)

    def _wait(self, pin: Pin) -> None:
        if self._waiting_count >= self._limit:
            return
        held = self._waiting.setdefault(pin.node_id, {})
        self._waiting_count += pin.key not in held
        held[pin.key] = pin.tokens


class Backlog:
    """Pins that are to be told, the newest word on each session; what is beyond ``limit`` pushes the oldest out."""

    __slots__ = ("_limit", "_pins", "dropped")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pins: dict[int, Pin] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, pin: Pin) -> None:
        """Another one."""
        pins = self._pins
        if pins.pop(pin.key, None) is None and len(pins) >= self._limit:
            del pins[next(iter(pins))]
            self.dropped += 1
        pins[pin.key] = pin

    def some(self, most: int) -> list[Pin]:
        """Take out the oldest."""
        keys = [key for key, _ in zip(self._pins, range(most), strict=False)]
        return [self._pins.pop(key) for key in keys]

    def give_back(self, pins: Iterable[Pin]) -> None:
        """They could not be told after all; newer words stand."""
        older: Mapping[int, Pin] = {pin.key: pin for pin in pins}
        self._pins = {**older, **self._pins}
        while len(self._pins) > self._limit:
            del self._pins[next(iter(self._pins))]
            self.dropped += 1
