"""The process in which a load test's gRPC calls are made, so that gRPC and gevent never meet.

    python -m loadtest.users.sidecar --fd N --host http://127.0.0.1:8000 --model NAME

Calls come and outcomes go on the socket N, each message after its length. It ends when the other side hangs up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from loadtest.users.call import Ask, Call, Drop, Outcome, Said
from loadtest.users.grpc_calls import GrpcCalls
from loadtest.users.target import target

MOST = 8192
"""Calls at a time; one more is refused."""
_decode = msgspec.msgpack.Decoder(Ask | Drop).decode
_encode = msgspec.msgpack.Encoder().encode


def framed(message: object) -> bytes:
    """A message after its length."""
    raw = _encode(message)
    return len(raw).to_bytes(4, "big") + raw


class Sidecar:
    """Makes the calls that one socket asks for."""

    def __init__(self, calls: GrpcCalls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._calls, self._reader, self._writer = calls, reader, writer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Until the other side hangs up."""
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                self._message(_decode(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writer.close()

    def _message(self, message: Ask | Drop) -> None:
        if isinstance(message, Drop):
            task = self._tasks.get(message.number)
            if task is not None:
                task.cancel()
        elif len(self._tasks) >= MOST:
            self._say(message.number, Outcome(reason="GENERATOR_FULL", detail=f"{MOST} calls are in flight"))
        else:
            self._tasks[message.number] = asyncio.create_task(self._ask(message.number, message.call))

    async def _ask(self, number: int, call: Call) -> None:
        try:
            self._say(number, await self._calls.ask(call))
        except Exception as e:  # a mistake of ours must not leave the caller waiting
            self._say(number, Outcome(reason="GENERATOR_FAILED", detail=repr(e)[:500]))
        finally:
            self._tasks.pop(number, None)

    def _say(self, number: int, outcome: Outcome) -> None:
        # No more than one answer for each call of MOST at a time, so what waits to be written is bounded.
        self._writer.write(framed(Said(number, outcome)))


async def run(fd: int, host: str, model: str, ca_file: str) -> None:
    """Serve the socket."""
    owned = {host.split("://")[-1].rsplit(":", 1)[0].strip("[]")}  # whoever started this has asked already
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    async with GrpcCalls(target(host, owned), model, ca_file) as calls:
        await Sidecar(calls, reader, writer).serve()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the other side hangs up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--ca-file", default="")
    args = parser.parse_args(argv)
    # Ctrl-C reaches the whole group; the end of the socket says when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(run(args.fd, args.host, args.model, args.ca_file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
