"""An OpenAI server of a few lines: each request gets what a function of its body says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """An answer: its status, its pieces of text with the seconds before each, and what else a server may do."""

    status: int = 200
    pieces: Sequence[tuple[float, str]] = ((0.0, "a"), (0.01, "b"))
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 8, "completion_tokens": 2})
    error: dict[str, Any] | None = None
    finish: str | None = "stop"
    hang: bool = False
    cut: bool = False
    node: str = "n1"


Script = Callable[[dict[str, Any]], Reply]


@dataclass
class SseServer:
    """What it has seen. ``bodies`` are of chat requests."""

    address: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """A client hung up."""
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """One for each chat request that came."""


@contextlib.asynccontextmanager
async def sse_server(script: Script = lambda body: Reply(), models: Sequence[str] = ("m",)) -> AsyncIterator[SseServer]:
    """A running one."""
    seen = SseServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                seen.heads.append(head)
                if head.startswith("GET"):
                    data = json.dumps({"data": [{"id": name} for name in models]}).encode()
                    writer.write(_whole(200, data))
                    continue
                lower = head.lower()
                size = int(lower.partition("content-length: ")[2].partition("\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                seen.bodies.append(body)
                seen.asked.release()
                if not await _answer(writer, script(body)):
                    return
        except asyncio.CancelledError:
            pass  # the end of the test; asyncio would log it
        except (asyncio.IncompleteReadError, ConnectionError):
            seen.gone.set()
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _whole(status: int, data: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(data),
        data,
    )


async def _answer(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    if reply.hang:
        await asyncio.sleep(3600)
    if reply.status != 200:
        writer.write(_whole(reply.status, json.dumps({"error": reply.error}).encode()))
        return True
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nlaya-node: %b\r\n\r\n"
        % reply.node.encode()
    )
    for i, (wait, text) in enumerate(reply.pieces):
        await asyncio.sleep(wait)
        finish = reply.finish if i == len(reply.pieces) - 1 else None
        _event(writer, {"choices": [{"delta": {"content": text}, "finish_reason": finish}]})
        await writer.drain()
    if reply.cut:
        return False
    if reply.error:
        _event(writer, {"error": reply.error})
    if reply.usage:
        _event(writer, {"choices": [], "usage": reply.usage})
    if reply.finish:
        _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
