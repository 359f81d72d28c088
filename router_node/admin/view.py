"""What a router shows of its cluster, and the two things an operator may ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from router_node.discovery.membership import Entry, Membership
from router_node.dispatch import Ask, Dispatcher, hash_blocks
from router_node.routes.table import RouteTable
from shared.errors import Code, LayaError, invalid
from shared.pb.laya.v1 import admin_pb2, node_pb2


class ClusterView(ABC):
    """What the Admin service answers from. A single router answers for itself, a supervisor for its workers."""

    @abstractmethod
    def nodes(self) -> list[admin_pb2.NodeStatus]:
        """Every node, by id; called for each ListNodes."""

    @abstractmethod
    def routes(self) -> list[admin_pb2.RouteStatus]:
        """Every route, by name; called for each ListRoutes."""

    @abstractmethod
    def explain(self, request: admin_pb2.ExplainRequest) -> admin_pb2.ExplainResponse:
        """Where a request would go now; changes nothing. Raises LayaError for an unknown model."""

    @abstractmethod
    async def drain(self, request: admin_pb2.DrainNodeRequest) -> node_pb2.DrainResponse:
        """Pass a drain on to its node. Raises LayaError for an unknown node or one that cannot be reached."""


class LocalView(ClusterView):
    """The view of this process's own dispatcher and links."""

    def __init__(self, dispatcher: Dispatcher, membership: Membership, table: RouteTable) -> None:
        self._dispatcher = dispatcher
        self._membership = membership
        self._table = table

    def nodes(self) -> list[admin_pb2.NodeStatus]:
        return [self._status(entry) for entry in self._membership.entries()]

    def _status(self, entry: Entry) -> admin_pb2.NodeStatus:
        link = entry.link
        status = admin_pb2.NodeStatus(
            node_id=link.node_id or entry.named_id,
            address=link.address,
            state=link.state,
            source=",".join(sorted(entry.sources)),
            report_age_seconds=link.report_age,
            streams=link.pool.streams,
            connections=link.pool.connections,
            detail=link.trouble,
        )
        if link.what is not None:
            status.model.CopyFrom(link.what.model)
        if link.report is not None:
            status.report.CopyFrom(link.report)
        node = self._dispatcher.node(link.node_id) if self._membership.owner(link.node_id) is link else None
        if node is not None:
            if node.state == "ejected":
                status.state = "ejected"
                status.detail = f"it rests because {node.health.why}"
            elif not node.serving and status.state == "ready":
                status.state = "closed"
                status.detail = "its health service says NOT_SERVING"
            status.reserved_tokens = node.reserved_tokens
        return status

    def routes(self) -> list[admin_pb2.RouteStatus]:
        return self._table.routes()

    def explain(self, request: admin_pb2.ExplainRequest) -> admin_pb2.ExplainResponse:
        found = self._dispatcher.explain(
            Ask(
                request.model,
                session=request.session.encode(),
                tenant=request.tenant,
                priority=request.priority,
                prompt_tokens=request.prompt_tokens,
                prompt_bytes=len(request.prompt.encode()),
                max_new_tokens=request.max_tokens,
                prefix=hash_blocks(request.prompt.encode()),
            )
        )
        return admin_pb2.ExplainResponse(
            node_id=found.node_id,
            candidates=[
                admin_pb2.Candidate(
                    node_id=one.node_id,
                    cost_seconds=one.cost_seconds,
                    queued_tokens=one.queued_tokens,
                    reserved_tokens=one.reserved_tokens,
                    uncached_prompt_tokens=one.uncached_prompt_tokens,
                    prefill_rate=one.prefill_rate,
                    kv_share=one.kv_share,
                    barrier_seconds=one.barrier_seconds,
                    reason=one.reason,
                    pending_tokens=one.pending_tokens,
                    pending_seconds=one.pending_seconds,
                    reserved_seconds=one.reserved_seconds,
                    prompt_seconds=one.prompt_seconds,
                    prompt_weight=one.prompt_weight,
                    step_seconds=one.step_seconds,
                    unseen_seconds=one.unseen_seconds,
                    stale_seconds=one.stale_seconds,
                    penalty_seconds=one.penalty_seconds,
                )
                for one in found.candidates
            ],
            summary=found.summary,
        )

    async def drain(self, request: admin_pb2.DrainNodeRequest) -> node_pb2.DrainResponse:
        link = self._membership.owner(request.node_id)
        if link is None:
            known = ", ".join(entry.link.node_id for entry in self._membership.entries() if entry.link.node_id)
            raise LayaError(
                Code.NOT_FOUND,
                "NODE_NOT_FOUND",
                f"There is no node {request.node_id!r}; known nodes: {known or 'none'}.",
            )
        check_grace(request.grace_seconds)
        if request.undo and request.migrate:
            raise invalid("A drain is undone or moves streams, not both: leave one of undo and migrate out.", "migrate")
        return await link.drain(request.grace_seconds, request.undo, request.migrate)


def check_grace(seconds: float) -> None:
    """Raise LayaError INVALID_ARGUMENT for a grace that is none."""
    if not 0 <= seconds <= 86_400:
        raise invalid("grace_seconds must be 0 to 86400.", "grace_seconds")
