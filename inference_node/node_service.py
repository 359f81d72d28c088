"""laya.v1.Node: what routers and operators ask of a node."""

from __future__ import annotations

import math

from inference_node.drain import Drainer
from inference_node.memory.sequence import BlockGroup
from inference_node.report import Reporter
from inference_node.state import NodeState
from shared.errors import invalid
from shared.net.grpc_server import ServerCall
from shared.pb.laya.v1 import node_pb2 as pb
from shared.version import PROTOCOL, __version__


class NodeService:
    """Handlers for the routes of laya.v1.Node; one per node."""

    def __init__(self, state: NodeState, reporter: Reporter, drain: Drainer) -> None:
        self._state = state
        self._reporter = reporter
        self._drain = drain

    async def describe(self, request: pb.DescribeRequest, call: ServerCall) -> pb.DescribeResponse:
        """What this node is; before the model is loaded, what is known of it."""
        state = self._state
        name, *aliases = state.names
        response = pb.DescribeResponse(
            node_id=state.node_id,
            boot_id=state.boot_id,
            version=__version__,
            protocol=PROTOCOL,
            default_max_tokens=state.config.inference.default_max_tokens,
            overcommit=state.config.inference.overcommit,
            ready=state.ready,
            model=pb.ModelSpec(name=name, aliases=aliases),
        )
        serving = state.serving_or_none
        if serving is not None:
            info = serving.info
            response.kv_capacity_tokens = info.kv_capacity_tokens
            response.kv_block_tokens = info.kv_block_tokens
            response.kv_groups.extend(_group(group) for group in info.kv_groups)
            response.tells_evictions = info.tells_evictions
            response.max_num_seqs = info.max_num_seqs
            response.model.revision = info.revision
            response.model.max_seq_len = info.max_seq_len
            response.model.quantization = info.quantization
            response.model.engine = info.engine
        return response

    async def watch(self, request: pb.WatchRequest, call: ServerCall) -> None:
        """Stream reports until the router goes away."""
        watch = self._reporter.open(request.watcher_id)
        try:
            while True:
                await call.send(await watch.next())
        finally:
            self._reporter.close(watch)

    async def drain(self, request: pb.DrainRequest, call: ServerCall) -> pb.DrainResponse:
        """Take nothing new, or take requests again; the process stays until it is told to stop."""
        if not 0 <= request.grace_seconds <= 86_400 or math.isnan(request.grace_seconds):
            raise invalid("grace_seconds must be 0 to 86400.", "grace_seconds")
        if request.undo:
            self._drain.undo()
        else:
            self._drain.begin(request.grace_seconds or self._state.config.server.drain_timeout, request.migrate)
        serving = self._state.serving_or_none
        return pb.DrainResponse(
            draining=self._state.draining,
            running=serving.admission.running if serving is not None else 0,
            waiting=serving.admission.waiting if serving is not None else 0,
        )


def _group(group: BlockGroup) -> pb.KvGroup:
    return pb.KvGroup(
        copies=group.copies, block_tokens=group.block_tokens, most_blocks=group.most, extra_blocks=group.extra
    )
