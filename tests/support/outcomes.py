"""What gRPC calls come to: a server made of grpcio with a method for each behaviour, and a client that notes it all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

Outcome = dict[str, Any]
Channel = Any  # grpc.aio.Channel: its stubs want serializers, where bytes need none
Ask = Callable[[Channel], Awaitable[Outcome]]

MIB = 1 << 20
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_LIMIT = 20.0  # seconds for one call
_OURS = frozenset(("x-first", "x-last", "x-many", "x-bin", "x-echo-bin", "grpc-status-details-bin"))


class Site:
    """A grpcio server on 127.0.0.1. ``cancelled`` counts the calls whose handlers were cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.address = ""
        self._server = grpc.aio.server(options=UNLIMITED)
        kinds = {
            "unary": grpc.unary_unary_rpc_method_handler,
            "down": grpc.unary_stream_rpc_method_handler,
            "up": grpc.stream_unary_rpc_method_handler,
            "both": grpc.stream_stream_rpc_method_handler,
        }
        handlers = {name: kinds[name.partition("_")[0]](getattr(self, name)) for name in _METHODS}
        generic = grpc.method_handlers_generic_handler("t.T", handlers)
        self._server.add_generic_rpc_handlers((generic,))

    async def __aenter__(self) -> Site:
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def unary_echo(self, request: bytes, context: Any) -> bytes:
        return request

    async def unary_sized(self, request: bytes, context: Any) -> bytes:
        return b"a" * int(request)

    async def unary_fails(self, request: bytes, context: Any) -> bytes:
        """``code details``, both as bytes."""
        code, _, details = request.partition(b" ")
        await context.abort(_CODES[int(code)], details.decode())
        raise AssertionError

    async def unary_details(self, request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("grpc-status-details-bin", request),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "with details")
        raise AssertionError

    async def unary_metadata(self, request: bytes, context: Any) -> bytes:
        given = [pair for pair in context.invocation_metadata() if pair[0] in _OURS]
        await context.send_initial_metadata((("x-first", "1"), *given))
        context.set_trailing_metadata((("x-last", "2"), ("x-many", "a"), ("x-many", "b"), *given))
        return request

    async def unary_headers_then_error(self, request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("x-first", "1"),))
        await context.abort(grpc.StatusCode.ABORTED, "after headers")
        raise AssertionError

    async def unary_packed(self, request: bytes, context: Any) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return request * 100

    async def unary_hangs(self, request: bytes, context: Any) -> bytes:
        with self._counting():
            await asyncio.sleep(_LIMIT)
        return b""

    async def down_many(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """``count size``."""
        count, size = map(int, request.split())
        for i in range(count):
            yield (b"%d" % i).rjust(size, b".")

    async def down_then_error(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(3):
            yield request
        await context.abort(grpc.StatusCode.DATA_LOSS, "after three")

    async def down_endless(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        with self._counting():
            while True:
                yield b"x" * 100
                await asyncio.sleep(0.001)

    async def up_count(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        sizes = [len(request) async for request in requests]
        return b"%d %d" % (len(sizes), sum(sizes))

    async def up_early(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await anext(requests)
        return b"enough"

    async def up_early_error(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await anext(requests)
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no more")
        raise AssertionError

    async def both_echo(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def both_after(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        count = len([request async for request in requests])
        for _ in range(count):
            yield b"after the half-close"

    async def both_server_ends(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        yield await anext(requests)
        context.set_trailing_metadata((("x-last", "early"),))

    def _counting(self) -> _Counting:
        return _Counting(self)


class _Counting:
    def __init__(self, site: Site) -> None:
        self._site = site

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            self._site.cancelled += 1


_METHODS = [name for name in vars(Site) if name.startswith(("unary_", "down_", "up_", "both_"))]
_CODES = {code.value[0]: code for code in grpc.StatusCode}


async def outcome(call: Any, messages: list[bytes]) -> Outcome:
    """Everything a caller can see of a call that is over."""
    digest = hashlib.sha256(b"".join(len(m).to_bytes(4, "big") + m for m in messages)).hexdigest()
    return {
        "code": (await call.code()).name,
        "details": await call.details(),
        "messages": len(messages),
        "digest": digest,
        "initial": _told(await call.initial_metadata()),
        "trailing": _told(await call.trailing_metadata()),
    }


def _told(metadata: Iterable[tuple[str, str | bytes]] | None) -> list[tuple[str, str | bytes]]:
    return [(key, value) for key, value in metadata or () if key in _OURS]


def unary(method: str, request: bytes, timeout: float = _LIMIT, **more: Any) -> Ask:
    async def ask(channel: Channel) -> Outcome:
        call = channel.unary_unary(f"/t.T/{method}")(request, timeout=timeout, **more)
        messages: list[bytes] = []
        with contextlib.suppress(grpc.aio.AioRpcError):
            messages.append(await call)
        return await outcome(call, messages)

    return ask


def down(method: str, request: bytes, *, cancel_after: int = 0, pause: float = 0.0, timeout: float = _LIMIT) -> Ask:
    async def ask(channel: Channel) -> Outcome:
        call = channel.unary_stream(f"/t.T/{method}")(request, timeout=timeout)
        messages: list[bytes] = []
        try:
            async for message in call:
                messages.append(message)
                if len(messages) == cancel_after:
                    call.cancel()
                if pause:
                    await asyncio.sleep(pause)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        return await outcome(call, messages[: cancel_after or None])

    return ask


def up(method: str, sizes: list[int], *, stays_open: bool = False) -> Ask:
    async def ask(channel: Channel) -> Outcome:
        async def requests() -> AsyncIterator[bytes]:
            for size in sizes:
                yield b"u" * size
            if stays_open:  # and silent: grpcio makes an error of its own of a write that crosses the answer
                await asyncio.sleep(_LIMIT)

        call = channel.stream_unary(f"/t.T/{method}")(requests(), timeout=_LIMIT)
        messages: list[bytes] = []
        with contextlib.suppress(grpc.aio.AioRpcError):
            messages.append(await call)
        return await outcome(call, messages)

    return ask


def both(method: str, count: int, *, in_turns: bool = False, ends: bool = True) -> Ask:
    async def ask(channel: Channel) -> Outcome:
        call = channel.stream_stream(f"/t.T/{method}")(timeout=_LIMIT)
        messages: list[bytes] = []
        try:
            for i in range(count):
                await call.write(b"message %d" % i)
                if in_turns:
                    messages.append(await call.read())
            if ends:
                await call.done_writing()
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                messages.append(message)
        except grpc.aio.AioRpcError:
            pass
        return await outcome(call, messages)

    return ask


def cancelled_while_waiting(method: str) -> Ask:
    async def ask(channel: Channel) -> Outcome:
        call = channel.unary_unary(f"/t.T/{method}")(b"", timeout=_LIMIT)
        await asyncio.sleep(0.2)
        call.cancel()
        return {"code": (await call.code()).name}

    return ask


def failing(code: int, details: str) -> Ask:
    return unary("unary_fails", b"%d %b" % (code, details.encode()))


CASES: dict[str, Ask] = {
    "ok": unary("unary_echo", b"hello"),
    "empty message": unary("unary_echo", b""),
    "8 MiB up and down": unary("unary_echo", b"z" * (8 * MIB)),
    "8 MiB down": unary("unary_sized", b"%d" % (8 * MIB)),
    **{f"status {code}": failing(code, f"for reason {code}") for code in range(1, 17)},
    "status without details": failing(5, ""),
    "details in many scripts": failing(3, "100 % größer — 数字\nsecond line"),
    "status details": unary("unary_details", bytes(range(256)) * 4),
    "metadata": unary("unary_metadata", b"m"),
    "binary metadata": unary(
        "unary_metadata", b"m", metadata=(("x-echo-bin", bytes(range(256))), ("x-echo-bin", b""), ("x-bin", b"text"))
    ),
    "large metadata": unary("unary_metadata", b"m", metadata=(("x-echo-bin", b"k" * 5000),)),
    "error after headers": unary("unary_headers_then_error", b""),
    "gzip up": unary("unary_echo", b"squeeze me " * 1000, compression=grpc.Compression.Gzip),
    "gzip down": unary("unary_packed", b"squeeze me "),
    "unknown method": unary("unary_nothing", b""),
    "deadline": unary("unary_hangs", b"", timeout=0.3),
    "cancel": cancelled_while_waiting("unary_hangs"),
    "no message down": down("down_many", b"0 1"),
    "many messages down": down("down_many", b"500 20"),
    "20 MiB down": down("down_many", b"20 1048576"),
    "a slow reader": down("down_many", b"40 100000", pause=0.01),
    "error in the middle": down("down_then_error", b"d"),
    "cancel in the middle": down("down_endless", b"", cancel_after=5),
    "no message up": up("up_count", []),
    "many messages up": up("up_count", [10] * 500),
    "20 MiB up": up("up_count", [MIB] * 20),
    "early answer": up("up_early", [10], stays_open=True),
    "early error": up("up_early_error", [10], stays_open=True),
    "in turns": both("both_echo", 50, in_turns=True),
    "all at once": both("both_echo", 200),
    "answers after the half-close": both("both_after", 20),
    "the server ends first": both("both_server_ends", 1, ends=False),
}
