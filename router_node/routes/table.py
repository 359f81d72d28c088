"""What can be asked for: models and the nodes behind each, and the rules that stand before them.

A request that no rule applies to goes by its model: name and aliases lead to the pool of nodes that serve it.

Clients poll these lists, so they are rendered once and kept until a node changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from router_node.dispatch import Dispatcher, NodeState
from shared.pb.laya.v1 import admin_pb2, inference_pb2

if TYPE_CHECKING:
    from router_node.routes.live import LiveTable

# A node in one of these states serves, or will again in a moment: its model can be asked for.
_SERVING: Final = frozenset(("ready", "closed", "ejected"))
_MAX_REMEMBERED: Final = 1024
_MAX_NAMED: Final = 1000  # names of rules that are listed


class _Card(msgspec.Struct):
    """One entry of OpenAI's model list."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class _CardList(msgspec.Struct):
    object: str
    data: list[_Card]


class RouteTable:
    """Lists models and routes from the dispatcher's nodes; ``invalidate`` it when a node changes."""

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float] = time.time) -> None:
        self.live: LiveTable | None = None
        """The rules that requests go by; None while there are none."""
        self.reads_body = False
        """Rules look into bodies, so a request must be read even if its metadata says everything."""
        self._dispatcher = dispatcher
        self._clock = clock
        self._created: dict[str, int] = {}
        self._grpc: bytes | None = None
        self._json: bytes | None = None

    def swap(self, live: LiveTable | None) -> None:
        """From now on requests go by these rules; None for no rules. One call, so that each sees one version."""
        self.live = live
        self.reads_body = live is not None and live.reads_body
        self.invalidate()

    def invalidate(self) -> None:
        """Render the lists anew when they are asked for next."""
        self._grpc = None
        self._json = None

    def models(self) -> list[inference_pb2.ModelInfo]:
        """The models that can be asked for now, by name; ``nodes`` counts those that take requests."""
        found: dict[str, inference_pb2.ModelInfo] = {}
        for node in self._dispatcher.nodes():
            if node.state not in _SERVING:
                continue
            spec = node.spec
            info = found.get(spec.model)
            if info is None:
                info = found[spec.model] = inference_pb2.ModelInfo(
                    name=spec.model,
                    revision=spec.revision,
                    max_seq_len=spec.max_seq_len,
                    quantization=spec.quantization,
                    engine=spec.engine,
                )
            # The shortest known context: what any of its nodes can serve.
            info.max_seq_len = min(info.max_seq_len, spec.max_seq_len) or max(info.max_seq_len, spec.max_seq_len)
            info.aliases.extend(alias for alias in spec.aliases if alias not in info.aliases)
            info.nodes += node.state == "ready"
        self._add_named(found)
        return [found[name] for name in sorted(found)]

    def _add_named(self, found: dict[str, inference_pb2.ModelInfo]) -> None:
        """Names that only rules know can be asked for too: aliases of the first served pool that each leads to."""
        live = self.live
        if live is None:
            return
        taken = {alias for info in found.values() for alias in (info.name, *info.aliases)}
        for name in sorted(set(live.matcher.exact_names()) - taken)[:_MAX_NAMED]:
            for pool in live.pools_of(name):
                info = found.get(pool.partition("@")[0])
                if info is not None:
                    info.aliases.append(name)
                    break

    def routes(self) -> list[admin_pb2.RouteStatus]:
        """Every route with the ids of its pool's nodes, by name, those that cannot be asked for now too."""
        pools: dict[str, list[NodeState]] = {}
        for node in self._dispatcher.nodes():
            pools.setdefault(node.spec.model, []).append(node)
        return [
            admin_pb2.RouteStatus(
                name=name,
                models=list(dict.fromkeys([name, *(alias for node in pools[name] for alias in node.spec.aliases)])),
                node_ids=[node.id for node in pools[name]],
            )
            for name in sorted(pools)
        ]

    def list_models_grpc(self) -> bytes:
        """A serialized ``ListModelsResponse``."""
        if self._grpc is None:
            self._grpc = inference_pb2.ListModelsResponse(models=self.models()).SerializeToString()
        return self._grpc

    def models_json(self) -> bytes:
        """The body of OpenAI's ``GET /v1/models``; an alias is an entry whose ``root`` is the model."""
        if self._json is None:
            cards = [
                _Card(name, "model", self._since(info.name), "laya", info.name, None, info.max_seq_len)
                for info in self.models()
                for name in (info.name, *info.aliases)
            ]
            self._json = msgspec.json.encode(_CardList("list", cards))
        return self._json

    def _since(self, model: str) -> int:
        """When the model was first seen here, in seconds since the epoch."""
        if model not in self._created and len(self._created) >= _MAX_REMEMBERED:
            self._created.clear()
        return self._created.setdefault(model, int(self._clock()))
