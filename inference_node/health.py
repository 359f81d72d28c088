"""gRPC health with all three methods: the library's own servicer lacks List."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health, health_pb2

from inference_node.state import NodeState

READINESS = "laya.v1.Inference"
_Response = health_pb2.HealthCheckResponse


class HealthService(health.aio.HealthServicer):  # type: ignore[name-defined,misc]
    """ "" says that the process lives, READINESS that it takes requests."""

    def __init__(self, state: NodeState) -> None:
        super().__init__()
        self._state = state

    async def tell(self) -> None:
        """Look at the node's state and tell whoever watches."""
        await self.set(READINESS, self._readiness())

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> health_pb2.HealthListResponse:
        """Every service with its status."""
        statuses = {"": _Response(status=_Response.SERVING), READINESS: _Response(status=self._readiness())}
        return health_pb2.HealthListResponse(statuses=statuses)

    def _readiness(self) -> health_pb2.HealthCheckResponse.ServingStatus:
        return _Response.SERVING if self._state.ready else _Response.NOT_SERVING
