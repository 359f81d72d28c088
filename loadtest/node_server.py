"""A streaming service on the node's gRPC server, and the same on ``grpc.aio``: what the server alone costs a message.

    python -m loadtest.node_server --kind laya|grpc.aio --messages 80 --pace 0.025

As in an engine, a step gives every running stream one token at the same moment. ``--pace 0`` has no steps: each stream
sends as fast as the server takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import uvloop

from shared.net.flusher import Flusher
from shared.net.grpc_server import GrpcServer, Method, ServerCall
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from shared.pb.laya.v1 import inference_pb2 as pb

KINDS = ("laya", "grpc.aio")
PATH = "/laya.v1.Inference/Generate"
_OPTIONS: list[tuple[str, Any]] = [("grpc.max_concurrent_streams", 4096), ("grpc.so_reuseport", 0)]


class Steps:
    """An engine's steps: everybody who waits is woken at once, ``pace`` seconds apart."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Step until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += self.pace
            await asyncio.sleep(max(0.0, due - loop.time()))
            woken, self._next = self._next, loop.create_future()
            woken.set_result(None)

    async def next(self) -> None:
        """The next step; at once where there are none."""
        if self.pace:
            await asyncio.shield(self._next)


def token() -> pb.GenerateResponse:
    """A token that says when it was made."""
    return pb.GenerateResponse(text=f"t{time.monotonic_ns():020d}", token_ids=[7])


class Streams(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The service, for both servers."""

    def __init__(self, steps: Steps, messages: int) -> None:
        self._steps = steps
        self._messages = messages

    async def generate(self, request: pb.GenerateRequest, call: ServerCall) -> None:
        """On our server."""
        for _ in range(self._messages):
            await self._steps.next()
            await call.send(token())

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """On ``grpc.aio``."""
        if handler_call_details.method != PATH:
            return None

        async def generate(
            request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[pb.GenerateResponse]:
            for _ in range(self._messages):
                await self._steps.next()
                yield token()

        return grpc.unary_stream_rpc_method_handler(
            generate, pb.GenerateRequest.FromString, pb.GenerateResponse.SerializeToString
        )


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    steps = Steps(args.pace)
    streams = Streams(steps, args.messages)
    stepping = asyncio.create_task(steps.run()) if args.pace else None
    async with contextlib.AsyncExitStack() as stack:
        if args.kind == "laya":
            ours = GrpcServer({PATH.encode(): Method(streams.generate, pb.GenerateRequest, stream=True)})
            settings = NetSettings(max_streams=4096, connection_window=1 << 30)
            flusher = Flusher(loop)
            make = lambda: H2ServerProtocol(ours.accept, settings, flusher).protocol  # noqa: E731
            listening = await loop.create_server(make, "127.0.0.1", 0, backlog=1024)
            stack.callback(listening.close)
            stack.push_async_callback(ours.close)
            port = listening.sockets[0].getsockname()[1]
        else:
            theirs = grpc.aio.server(options=_OPTIONS)
            theirs.add_generic_rpc_handlers((streams,))
            port = theirs.add_insecure_port("127.0.0.1:0")
            await theirs.start()
            stack.push_async_callback(theirs.stop, 0.2)
        line = json.dumps({"event": "ready", "address": f"127.0.0.1:{port}"})
        if args.ready_fd >= 0:
            os.write(args.ready_fd, line.encode() + b"\n")
            os.close(args.ready_fd)
        else:
            print(line, flush=True)
        await stop.wait()
        if stepping is not None:
            stepping.cancel()
            await asyncio.gather(stepping, return_exceptions=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--messages", type=int, default=64, help="messages of a stream")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--ready-fd", type=int, default=-1)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
