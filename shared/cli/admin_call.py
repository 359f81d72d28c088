"""One call of a router's Admin service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shared.client import to_laya_error
from shared.config import ConfigError
from shared.headers import CLUSTER_TOKEN


async def admin_call(address: str, method: str, request: Any, timeout: float = 10.0) -> Any:
    """Call ``laya.v1.Admin/METHOD`` on the private listener; raises LayaError.

    Beyond loopback the listener wants the cluster token, which is taken from ``LAYA_SERVER__CLUSTER_TOKEN``
    or the file that ``LAYA_SERVER__CLUSTER_TOKEN_FILE`` names, as the router does.
    """
    import grpc
    import grpc.aio

    from shared.pb.laya.v1 import admin_pb2_grpc

    token = _cluster_token()
    metadata = ((CLUSTER_TOKEN.decode(), token),) if token else ()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            return await getattr(stub, method)(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as e:
            raise to_laya_error(e) from None


def _cluster_token() -> str:
    """The token, or nothing."""
    name = os.environ.get("LAYA_SERVER__CLUSTER_TOKEN_FILE")
    if name is None:
        return os.environ.get("LAYA_SERVER__CLUSTER_TOKEN", "")
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"LAYA_SERVER__CLUSTER_TOKEN_FILE: {name} cannot be read ({e})") from None
