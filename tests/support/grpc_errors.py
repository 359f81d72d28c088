"""What a gRPC client reads out of an error."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.rpc import error_details_pb2, status_pb2

END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # what ``read`` returns at the end of a stream


def info_of(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """The error's ErrorInfo, whose domain must be ours."""
    trailers: Any = error.trailing_metadata() or ()
    details = {key: value for key, value in trailers}["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info) and info.domain == "laya"
    return info


def reason(error: grpc.aio.AioRpcError) -> str:
    """The reason in the error's ErrorInfo."""
    return str(info_of(error).reason)


def metadata_of(error: grpc.aio.AioRpcError) -> dict[str, str]:
    """What else the ErrorInfo says."""
    return dict(info_of(error).metadata)
