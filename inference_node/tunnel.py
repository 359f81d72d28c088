"""The engine's OpenAI-compatible application behind admission: one function for the gRPC tunnel and the node's HTTP.

A request is admitted once, before the application sees it, so that a refusal is a clean 429 or 400 and never a broken
stream. What the application writes passes on byte for byte, and no faster than the reader takes it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inference_node import bodies
from inference_node.admission import Need
from inference_node.call import Call
from inference_node.door import Door, Visit
from inference_node.engines.base import BadRequest, EngineError, Scope
from inference_node.engines.context import dispatch, first_token
from inference_node.prepare import Caps, refused
from inference_node.state import NodeState, Serving
from shared import headers as names
from shared.errors import Code, LayaError
from shared.logging import event
from shared.net.api import Headers
from shared.net.grpc_server import ServerCall
from shared.pb.laya.v1.openai_pb2 import HttpHeader, HttpRequest, HttpResponse, HttpResponseHead

GENERATING: Final = frozenset((bodies.CHAT, bodies.COMPLETIONS, bodies.RESPONSES, bodies.EMBEDDINGS))
ROUTES: Final[dict[str, str]] = {
    **dict.fromkeys(GENERATING, "POST"),
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/v1/models": "GET",
}
DISCONNECT_GRACE = 0.25  # seconds in which an application may end by itself once it knows that its client is gone
CANCEL_GRACE = 5.0
MAX_CHUNK = 1 << 20  # bytes of one message; a larger body part goes out in several

_TO_APP = frozenset((b"content-type", b"accept", b"user-agent", names.TRACEPARENT, names.TRACESTATE))
_NOT_TO_CLIENT = frozenset(
    b"connection keep-alive proxy-connection transfer-encoding upgrade te trailer content-length server date".split()
)


@dataclass(frozen=True, slots=True)
class WebRequest:
    """An HTTP request: ``target`` is path and query, header names are lower case."""

    method: str
    target: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class WebReply(ABC):
    """Where an answer goes. ``head`` comes once, then ``body`` any number of times; both may wait for the reader."""

    __slots__ = ()

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether ``head`` was called."""

    @abstractmethod
    async def head(self, status: int, headers: Headers) -> None:
        """Status and headers, hop-by-hop ones left out."""

    @abstractmethod
    async def body(self, data: bytes, last: bool) -> None:
        """Bytes exactly as the application wrote them; may be empty on the last call."""


class OpenAIFront:
    """Checks, admits and runs OpenAI requests; one per node."""

    def __init__(self, state: NodeState, door: Door, log: logging.Logger) -> None:
        self._state = state
        self._door = door
        self._log = log

    async def serve(self, request: WebRequest, call: Call, reply: WebReply) -> None:
        """Answer one request. A refusal is an answer too; raises only when an answer that has begun cannot go on.

        Cancelling the caller's task tells the application that its client is gone, and ends it.
        """
        try:
            path, _, query = request.target.partition("?")
            _check_route(request.method, path)
            serving = self._state.serving
            if path in GENERATING:
                await self._generate(serving, path, query, request, call, reply)
            else:
                await self._run(serving, path, query, request, request.body, call, reply, None)
        except LayaError as e:
            await _refuse(reply, e)

    async def _generate(
        self, serving: Serving, path: str, query: str, request: WebRequest, call: Call, reply: WebReply
    ) -> None:
        arrived = self._door.clock()
        body = bodies.parse(request.body)
        try:
            self._state.check_model(bodies.model_of(body, call))
            plan = bodies.plan(path, body, call, Caps.of(self._state.config, call))
            prompts = await serving.engine.count_prompt(path, body)
            if not prompts or min(prompts) < 1:
                raise BadRequest("the prompt is empty", "input" if path == bodies.EMBEDDINGS else "prompt")
        except BadRequest as e:
            raise refused(e) from None
        except EngineError as e:
            raise self._state.engine_error(e) from e
        default = self._state.config.inference.default_max_tokens
        bodies.fill_max_tokens(plan, max(prompts), default, serving.info.max_seq_len)
        need = Need(prompts, plan.max_new_tokens, plan.sequences)
        raw = bodies.encode(body) if plan.changed else request.body
        async with self._door.visit("openai", call, need, plan.priority, arrived) as visit:
            if visit.trace is not None:
                visit.trace.about(path, self._state.names[0], plan.max_new_tokens, plan.sequences)
            await self._run(serving, path, query, request, raw, call, reply, visit)

    async def _run(
        self,
        serving: Serving,
        path: str,
        query: str,
        request: WebRequest,
        body: bytes,
        call: Call,
        reply: WebReply,
        visit: Visit | None,
    ) -> None:
        io = _AppIO(reply, body, visit, serving.info.engine)
        context = contextvars.copy_context()
        if visit is not None:
            context.run(first_token.set, visit.prompt_started)
            context.run(dispatch.set, call.dispatch)
        scope = _scope(request, path, query, len(body), call)
        app = serving.engine.asgi_app()
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            _invoke(app, scope, io), name="openai-app", context=context
        )
        try:
            # Not ``await task``: a cancellation must reach the application as a disconnect first.
            await asyncio.wait({task})
        except asyncio.CancelledError:
            io.disconnect()
            await _wind_down(task)
            raise
        error = task.exception()
        if error is not None and not io.ended:
            self._broken(error, path, io)

    def _broken(self, error: BaseException, path: str, io: _AppIO) -> None:
        """The application raised instead of answering."""
        if isinstance(error, EngineError):
            raise self._state.engine_error(error) from error
        event(self._log, logging.ERROR, "openai_app_failed", exc_info=error, path=path, begun=io.started)
        raise LayaError(Code.INTERNAL, "ENGINE_FAILED", "The engine's application failed on this request.") from error


class Tunnel:
    """laya.v1.OpenAI: an HTTP request as a message, its answer as a stream of messages."""

    def __init__(self, front: OpenAIFront) -> None:
        self._front = front

    async def call(self, request: HttpRequest, call: ServerCall) -> None:
        """Handle OpenAI/Call."""
        about = Call(call.metadata, call.request_id.decode(), call.deadline)
        headers = [(h.name.encode("latin-1", "replace"), h.value.encode("latin-1", "replace")) for h in request.headers]
        web = WebRequest(request.method, request.target, headers, request.body)
        await self._front.serve(web, about, _TunnelReply(call))


class _TunnelReply(WebReply):
    __slots__ = ("_begun", "_call")

    def __init__(self, call: ServerCall) -> None:
        self._call = call
        self._begun = False

    @property
    def begun(self) -> bool:
        return self._begun

    async def head(self, status: int, headers: Headers) -> None:
        self._begun = True
        fields = [HttpHeader(name=n.decode("latin-1"), value=v.decode("latin-1")) for n, v in headers]
        await self._call.send(HttpResponse(head=HttpResponseHead(status=status, headers=fields)))

    async def body(self, data: bytes, last: bool) -> None:
        if len(data) <= MAX_CHUNK:
            if data:
                await self._call.send(HttpResponse(body=data))
            return
        for at in range(0, len(data), MAX_CHUNK):
            await self._call.send(HttpResponse(body=data[at : at + MAX_CHUNK]))


class _AppIO:
    """ASGI receive and send of one request."""

    __slots__ = ("_body", "_engine", "_gone", "_reply", "_visit", "ended", "started")

    def __init__(self, reply: WebReply, body: bytes, visit: Visit | None, engine: str) -> None:
        self._reply = reply
        self._body: bytes | None = body
        self._visit = visit
        self._engine = engine.encode()
        self._gone = asyncio.Event()
        self.started = False
        self.ended = False

    def disconnect(self) -> None:
        """The client is gone: the application hears of it at its next receive, and what it sends is dropped."""
        self._gone.set()

    async def receive(self) -> MutableMapping[str, Any]:
        """The whole body, then nothing until the client is gone or the answer is complete."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass on what the application writes."""
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.started = True
            await self._reply.head(message["status"], self._headers(message.get("headers", ())))
        elif message["type"] == "http.response.body":
            data = message.get("body", b"")
            last = not message.get("more_body", False)
            if data and self._visit is not None:
                self._visit.first_token()
            if last:
                self.ended = True
            if data or last:
                await self._write(bytes(data), last)
            if last:
                self._gone.set()

    async def _write(self, data: bytes, last: bool) -> None:
        visit = self._visit
        if visit is None or not visit.timed:
            await self._reply.body(data, last)
            return
        since = visit.now()
        await self._reply.body(data, last)
        visit.serialising += visit.now() - since

    def _headers(self, headers: Sequence[tuple[bytes, bytes]]) -> Headers:
        out = [(n.lower(), v.strip()) for n, v in headers if n.lower() not in _NOT_TO_CLIENT]
        if not any(name == b"x-laya-engine" for name, _ in out):
            out.append((b"x-laya-engine", self._engine))
        return out


async def _invoke(app: Any, scope: Scope, io: _AppIO) -> None:
    await app(scope, io.receive, io.send)
    if not io.ended and not io._gone.is_set():
        raise RuntimeError("the application returned before its answer was complete")


async def _wind_down(task: asyncio.Task[None]) -> None:
    """Let an application that knows of the disconnect end by itself; else cancel it."""
    try:
        done, _ = await asyncio.wait({task}, timeout=DISCONNECT_GRACE)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # seen


async def _refuse(reply: WebReply, error: LayaError) -> None:
    if reply.begun:
        raise error
    status, headers, body = bodies.error_body(error)
    await reply.head(status, headers)
    await reply.body(body, True)


def _check_route(method: str, path: str) -> None:
    wanted = ROUTES.get(path)
    if wanted is None:
        raise LayaError(
            Code.NOT_FOUND,
            "METHOD_UNKNOWN",
            f"There is no {path[:128]!r} here; there are {', '.join(sorted(ROUTES))}.",
        )
    if method != wanted:
        raise LayaError(
            Code.INVALID_ARGUMENT, "METHOD_UNKNOWN", f"{path} takes {wanted}, not {method[:16]!r}.", http_status=405
        )


def _scope(request: WebRequest, path: str, query: str, size: int, call: Call) -> Scope:
    headers = [(name, value) for name, value in request.headers if name in _TO_APP]
    if request.method == "POST":
        headers.append((b"content-length", b"%d" % size))
        if not any(name == b"content-type" for name, _ in headers):
            headers.append((b"content-type", b"application/json"))
    if call.traceparent is not None and not any(name == names.TRACEPARENT for name, _ in headers):
        headers.append((names.TRACEPARENT, call.traceparent))
    headers += [(names.REQUEST_ID, call.request_id.encode()), (b"host", b"node")]
    return {
        "type": "http",
        # 2.3: applications then watch for http.disconnect while they stream, rather than wait for a send to fail.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
    }
