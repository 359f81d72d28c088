"""Which nodes there are, which pools they form, and which names lead there."""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from router_node.dispatch.pool import Pool
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.types import NodeSpec, NodeState

REMEMBERED: Final = 600.0
"""Seconds for which a model without nodes is still known: asking for it is UNAVAILABLE rather than NOT_FOUND."""
_EMPTY_POOLS: Final = 256


class ModelInfo(NamedTuple):
    """A model that clients may ask for."""

    name: str
    aliases: tuple[str, ...]
    revision: str
    max_seq_len: int
    ready: int
    nodes: int


class Registry:
    """Nodes by id, pools by model and revision, and the names that clients use."""

    __slots__ = (
        "_departed",
        "_emptied",
        "_free_slots",
        "_incarnation",
        "_names",
        "_pools",
        "_settings",
        "nodes",
        "owners",
        "slots",
    )

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self.nodes: dict[str, NodeState] = {}
        self.slots: list[NodeState | None] = []
        """Nodes by slot."""
        self.owners: dict[int, NodeState] = {}
        """Nodes by incarnation."""
        self._free_slots: list[int] = []
        self._incarnation = 0
        self._departed: dict[str, NodeState] = {}  # removed with reservations outstanding
        self._pools: dict[tuple[str, str], Pool] = {}
        self._emptied: dict[Pool, float] = {}
        self._names: dict[str, tuple[Pool, ...]] = {}

    def add(self, node_id: str, address: str, spec: NodeSpec, now: float) -> NodeState:
        """Add a node, or bring one up to date; its reservations stay."""
        node = self.nodes.get(node_id)
        if node is not None:
            node.address = address
            old, node.spec = node.spec, spec
            if old.boot_id != spec.boot_id:
                node.ready = False  # another process: what the old one said of itself is void
            if _describes_the_same(old, spec):
                return node
            node.block = spec.kv_block_tokens
            self._leave(node, old, now)
        else:
            node = self._departed.pop(node_id, None) or NodeState(node_id, address, spec, -1, 0)
            node.address, node.spec, node.block = address, spec, spec.kv_block_tokens
            node.slot = heapq.heappop(self._free_slots) if self._free_slots else len(self.slots)
            if node.slot == len(self.slots):
                self.slots.append(node)
            else:
                self.slots[node.slot] = node
            self.nodes[node_id] = node
            self.renew(node)
        self._join(node, now)
        return node

    def remove(self, node_id: str, now: float) -> NodeState | None:
        """Remove a node; its slot is free for another at once. None when it is not known."""
        node = self.nodes.pop(node_id, None)
        if node is None:
            return None
        self._leave(node, node.spec, now)
        node.link_up = False
        node.awaiting_full = True
        node.reported_at = -1.0  # should it come back, it starts like a new one
        self.slots[node.slot] = None
        heapq.heappush(self._free_slots, node.slot)
        self.owners.pop(node.incarnation, None)
        if node.uncounted:
            self._departed[node_id] = node
        return node

    def renew(self, node: NodeState) -> None:
        """Another process answers for this node: what sessions know of the old one is void."""
        self.owners.pop(node.incarnation, None)
        self._incarnation += 1
        node.incarnation = self._incarnation
        self.owners[node.incarnation] = node

    def settled(self, node: NodeState) -> None:
        """A removed node may have seen its last reservation end."""
        if not node.uncounted and self._departed.get(node.id) is node:
            del self._departed[node.id]

    def resolve(self, name: str) -> tuple[Pool, ...]:
        """The pools of a model or alias, the one with most live nodes first; then by revision. Empty when unknown.

        ``model@revision`` is the pool of just that revision.
        """
        pools = self._names.get(name, ())
        if not pools:
            model, at, revision = name.rpartition("@")
            pool = self._pools.get((model, revision)) if at else None
            return () if pool is None else (pool,)
        if len(pools) > 1:
            return tuple(sorted(pools, key=_rank))
        return pools

    def names(self) -> list[str]:
        """Models that have nodes, and their aliases, sorted."""
        return sorted(name for name, pools in self._names.items() if any(pool.nodes for pool in pools))

    def models(self) -> list[ModelInfo]:
        """Models that have nodes, by name; of several revisions the one that is served."""
        out = []
        for model in sorted({model for (model, _), pool in self._pools.items() if pool.nodes}):
            pool = self.resolve(model)[0]
            lengths = [node.spec.max_seq_len for node in pool.nodes.values()]
            out.append(
                ModelInfo(
                    model,
                    tuple(sorted(+pool.aliases)),
                    pool.revision,
                    max(lengths, default=0),
                    pool.live,
                    len(pool.nodes),
                )
            )
        return out

    def reserved_tokens(self) -> int:
        """KV tokens that no report has counted, on nodes present and departed."""
        nodes = (*self.nodes.values(), *self._departed.values())
        return sum(node.reserved_tokens for node in nodes)

    def _join(self, node: NodeState, now: float) -> None:
        key = (node.spec.model, node.spec.revision)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(*key, self._settings)
        self._emptied.pop(pool, None)
        pool.join(node)
        pool.refresh(node, now)
        self._index(now)

    def _leave(self, node: NodeState, spec: NodeSpec, now: float) -> None:
        pool = self._pools[spec.model, spec.revision]
        pool.leave(node, spec)
        if not pool.nodes:
            self._emptied[pool] = now
        self._index(now)

    def _index(self, now: float) -> None:
        for pool, since in list(self._emptied.items()):  # the longest empty first
            if not pool.queue.count and (now - since > REMEMBERED or len(self._emptied) > _EMPTY_POOLS):
                del self._emptied[pool]
                del self._pools[pool.model, pool.revision]
        found: dict[str, list[Pool]] = {}
        for (model, _), pool in self._pools.items():
            found.setdefault(model, []).append(pool)
        for (model, _), pool in self._pools.items():
            for alias in +pool.aliases:
                if alias != model and not any(other.model == alias for other in found.get(alias, ())):
                    found.setdefault(alias, []).append(pool)
        self._names = {name: tuple(pools) for name, pools in found.items()}


def _rank(pool: Pool) -> tuple[int, int, str, str]:
    return (-pool.live, -len(pool.nodes), pool.model, pool.revision)


def _describes_the_same(a: NodeSpec, b: NodeSpec) -> bool:
    return _essence(a) == _essence(b)


def _essence(spec: NodeSpec) -> tuple[object, ...]:
    """All that a node is but which process it is."""
    return (
        spec.model,
        spec.aliases,
        spec.revision,
        spec.max_seq_len,
        spec.kv_capacity_tokens,
        spec.kv_block_tokens,
        spec.kv_groups,
        spec.max_num_seqs,
        spec.default_max_tokens,
        spec.quantization,
        spec.engine,
    )
