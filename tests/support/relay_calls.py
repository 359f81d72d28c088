"""What a client says and hears of one gRPC call through a relay."""

from __future__ import annotations

import asyncio

from shared import headers as names
from shared.errors import LayaError
from shared.net.grpc_wire import error_from_trailers
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_rig import MODEL

GENERATE = b"/laya.v1.Inference/Generate"
SDK = [(names.MODEL, MODEL.encode()), (names.PROMPT_TOKENS, b"12"), (names.MAX_TOKENS, b"64")]


def headers(path: bytes = GENERATE, *extra: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]


def request(**fields: object) -> bytes:
    values: dict[str, object] = {"model": MODEL, "text": "Hello"}
    values.update(fields)
    return pb.GenerateRequest(**values).SerializeToString()  # type: ignore[arg-type]


def error_of(stream: FakeServerStream) -> LayaError:
    error = error_from_trailers(list(stream.status().items()))
    assert error is not None
    return error


async def settled(condition, seconds: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)
