"""One call of a router's Admin service."""

from __future__ import annotations

from typing import Any

from shared.client import to_laya_error


async def admin_call(address: str, method: str, request: Any, timeout: float = 10.0) -> Any:
    """Call ``laya.v1.Admin/METHOD`` on the private listener; raises LayaError."""
    import grpc
    import grpc.aio

    from shared.pb.laya.v1 import admin_pb2_grpc

    async with grpc.aio.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            return await getattr(stub, method)(request, timeout=timeout)
        except grpc.aio.AioRpcError as e:
            raise to_laya_error(e) from None
