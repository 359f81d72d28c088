"""A pass-through on ``grpc.aio``, byte for byte: the usual way to write a gRPC proxy in Python, for comparison.

python -m loadtest.grpcaio_proxy --node 127.0.0.1:7000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import uvloop

_OPTIONS: list[tuple[str, Any]] = [("grpc.max_concurrent_streams", 4096), ("grpc.so_reuseport", 0)]


class PassThrough(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Hands every call to the node; messages stay bytes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of one method: unary request, streamed answer unless it is Complete."""
        metadata = tuple(
            (k, v) for k, v in handler_call_details.invocation_metadata if not k.startswith((":", "grpc-"))
        )
        if handler_call_details.method.endswith("/Complete"):
            call = self._channel.unary_unary(handler_call_details.method, None, None)

            async def unary(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
                return bytes(await call(request, metadata=metadata))

            return grpc.unary_unary_rpc_method_handler(unary)
        streamed = self._channel.unary_stream(handler_call_details.method, None, None)

        async def stream(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
            async for message in streamed(request, metadata=metadata):
                yield message

        return grpc.unary_stream_rpc_method_handler(stream)


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with grpc.aio.insecure_channel(args.node) as channel:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((PassThrough(channel),))
        port = server.add_insecure_port(f"127.0.0.1:{args.port}")
        await server.start()
        line = json.dumps({"event": "ready", "address": f"127.0.0.1:{port}"})
        if args.ready_fd >= 0:
            os.write(args.ready_fd, line.encode() + b"\n")
            os.close(args.ready_fd)
        else:
            print(line, flush=True)
        await stop.wait()
        await server.stop(0.5)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--node", required=True)
    parser.add_argument("--ready-fd", type=int, default=-1)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
