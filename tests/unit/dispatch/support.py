"""What the dispatch tests share: a clock that stands still, nodes that report, and a record of callbacks."""

from __future__ import annotations

import random
from typing import Any

from router_node.dispatch import Ask, Dispatcher, DispatchSettings, NodeSpec, NodeState, Report, Reservation, Ticket
from shared.errors import LayaError

MODEL = "m"
CAPACITY = 16_384
RATE = 8000.0


class Clock:
    """Moves when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Bed:
    """A dispatcher, its clock, and what its callbacks were told."""

    def __init__(self, seed: int = 1, worker: str = "w", **settings: Any) -> None:
        self.clock = Clock()
        self.woken: list[float] = []
        self.granted: list[Reservation] = []
        self.refused: list[LayaError] = []
        self.dispatcher = Dispatcher(
            worker, DispatchSettings(**settings), self.clock, rng=random.Random(seed), wake=self.woken.append
        )
        self._sequences: dict[str, int] = {}

    def node(self, node_id: str, *, capacity: int = CAPACITY, headroom: int | None = None, **spec: Any) -> NodeState:
        """A node that is connected and has reported."""
        spec.setdefault("kv_capacity_tokens", capacity)
        name = spec.pop("model", MODEL)
        node = self.dispatcher.add_node(node_id, f"{node_id}:1", NodeSpec(name, **spec))
        self.dispatcher.set_link(node_id, True)
        self.report(node_id, capacity if headroom is None else headroom, capacity=capacity)
        return node

    def nodes(self, count: int, **how: Any) -> list[NodeState]:
        """Nodes n0, n1, …"""
        return [self.node(f"n{i}", **how) for i in range(count)]

    def report(self, node_id: str, headroom: int = CAPACITY, *, capacity: int = CAPACITY, **numbers: Any) -> Any:
        """The node's next report."""
        sequence = self._sequences.get(node_id, 0) + 1
        self._sequences[node_id] = sequence
        numbers.setdefault("prefill_tokens_per_second", RATE)
        numbers.setdefault("full", sequence == 1)
        report = Report(sequence, numbers.pop("boot_id", "boot"), capacity, headroom, **numbers)
        return self.dispatcher.on_report(node_id, report)

    def ask(self, **ask: Any) -> Reservation | Ticket:
        """Submit; ``ask`` as for Ask."""
        ask.setdefault("prompt_tokens", 100)
        ask.setdefault("max_new_tokens", 60)
        return self.dispatcher.submit(Ask(ask.pop("model", MODEL), **ask), self.granted.append, self.refused.append)

    def reserve(self, **ask: Any) -> Reservation:
        """Submit what must be granted at once."""
        got = self.ask(**ask)
        assert isinstance(got, Reservation)
        return got

    def wait(self, **ask: Any) -> Ticket:
        """Submit what must wait."""
        got = self.ask(**ask)
        assert isinstance(got, Ticket)
        return got
