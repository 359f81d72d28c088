"""gRPC services on the network layer: unary and server-streaming methods as coroutines.

Each call has one task, which the server owns: it ends when the handler does, when the client goes away, when the
deadline passes, or when the server closes. A handler raises LayaError for what the client should know; anything else
it raises is logged, and the client is told only where to look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from logging import ERROR
from typing import Any

from shared import ids, logging
from shared.errors import Code, LayaError, unavailable
from shared.net.api import Acceptor, Headers, ServerSink, ServerStream
from shared.net.counters import NetCounters
from shared.net.grpc_call import Encodable, ServerCall
from shared.net.uploads import Uploads, upload_limit

__all__ = ["Encodable", "GrpcServer", "Handler", "Method", "ServerCall"]

# Called with the decoded request and its call. A unary method returns its answer; a streaming one sends, and returns
# None.
Handler = Callable[[Any, ServerCall], Awaitable[Any]]

_CANCEL_TIME = 5.0  # seconds that a cancelled handler has for its clean-up when the server closes

_log = logging.get("grpc")


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC. ``request_type`` is a protobuf class, or ``bytes`` for the message as it came."""

    handler: Handler
    request_type: Any
    stream: bool = False


class GrpcServer:
    """An Acceptor of gRPC requests for the methods in ``routes``, by path (``b"/package.Service/Method"``).

    ``max_message`` bounds a request message in bytes, ``body_timeout`` the pauses in one, in seconds. Paths that are
    not in ``routes`` go to ``fallback``, or are UNIMPLEMENTED. ``check`` sees each call of a route before its request
    message arrives, and raises LayaError to refuse it. Build it in a running event loop.
    """

    def __init__(
        self,
        routes: dict[bytes, Method],
        *,
        max_message: int = 32 << 20,
        body_timeout: float = 60.0,
        fallback: Acceptor | None = None,
        check: Callable[[ServerCall], None] | None = None,
        counters: NetCounters | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.max_message = max_message
        self.counters = counters if counters is not None else NetCounters()
        self.uploads = Uploads(self.loop, body_timeout, upload_limit(max_message))
        self.check = check
        self._routes = routes
        self._fallback = fallback
        self._calls: dict[asyncio.Task[None], ServerCall] = {}
        self._draining = False
        self._idle = asyncio.Event()
        self._make_id = ids.request_ids().next

    @property
    def calls(self) -> int:
        """Handlers that are running."""
        return len(self._calls)

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        """An Acceptor."""
        path = method_name = b""
        for name, value in headers:
            if name == b":path":
                path = value
            elif name == b":method":
                method_name = value
            elif name[0] != 0x3A:
                break  # pseudo-headers come first
        method = self._routes.get(path)
        if method is None:
            if self._fallback is not None:
                return self._fallback(stream, headers, end)
            method = _UNKNOWN
        call = ServerCall(self, method, path, stream)
        if method is _UNKNOWN:
            shown = path[:200].decode("ascii", "replace")
            call.fail(LayaError(Code.UNIMPLEMENTED, "METHOD_UNKNOWN", f"There is no method {shown} here."))
        elif method_name != b"POST":
            call.fail(LayaError(Code.UNIMPLEMENTED, "INVALID_REQUEST", "gRPC requests use POST."))
        elif self._draining:
            call.fail(unavailable("This server is shutting down: try another one.", "DRAINING"))
        else:
            call.open(headers, end)
        return None if call.cancelled else call

    async def close(self, grace: float = 0.0) -> None:
        """Refuse new calls, let running ones end for up to ``grace`` seconds, then cancel them."""
        self._draining = True
        if self._calls and grace > 0:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._idle.wait()
        tasks = dict(self._calls)
        for call in tasks.values():
            call.stop(unavailable("The server shut down before the call was complete.", "DRAINING"))
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=_CANCEL_TIME)
            for task in stuck:
                shown = tasks[task].path.decode("ascii", "replace")
                logging.event(_log, ERROR, "grpc_handler_ignores_cancel", path=shown)
        self.uploads.close()

    # Called by the calls.

    def name_request(self, given: bytes | None) -> bytes:
        """The client's request id when it is sane, else a new one."""
        return given if given is not None and ids.sane_request_id(given) else self._make_id()

    def spawn(self, call: ServerCall, request: Any) -> asyncio.Task[None]:
        """Start the handler."""
        task = self.loop.create_task(self._serve(call, request))
        self._calls[task] = call
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._calls[task]
        if not self._calls:
            self._idle.set()

    async def _serve(self, call: ServerCall, request: Any) -> None:
        method = call.method
        try:
            answer = await method.handler(request, call)
            call.succeed(None if method.stream else answer)
        except LayaError as error:
            call.fail(error)
        except asyncio.CancelledError:
            # By ``fail`` or by the end of the stream: then this says nothing new, and is dropped.
            call.fail(unavailable("The call was stopped on the server.", "DRAINING"))
        except Exception:
            shown = call.path.decode("ascii", "replace")
            request_id = call.request_id.decode()
            logging.event(_log, ERROR, "grpc_handler_failed", exc_info=True, path=shown, request_id=request_id)
            text = f"The server failed on this call; its log says why under {request_id}."
            call.fail(LayaError(Code.INTERNAL, "INTERNAL", text))


async def _nothing(request: Any, call: ServerCall) -> None:
    """Handler of no method."""


_UNKNOWN = Method(_nothing, bytes)
