"""The engine's OpenAI-compatible application behind admission: one function for the gRPC tunnel and the node's HTTP.

A request is admitted once, before the application sees it, so that a refusal is a clean 429 or 400 and never a broken
stream. What the application writes passes on byte for byte, and no faster than the reader takes it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any, Final

from inference_node import bodies, journal, resume
from inference_node.admission import Need
from inference_node.call import Call
from inference_node.door import Door, Visit
from inference_node.engines.base import BadRequest, EngineError, Inexact, Scope
from inference_node.engines.context import dispatch, first_token, past, pulled
from inference_node.prepare import Caps, refused, resumed_need
from inference_node.resume import Resumed
from inference_node.state import NodeState, Serving
from inference_node.web import TunnelReply, WebReply, WebRequest, engine_dead
from shared import headers as names
from shared.errors import Code, LayaError
from shared.logging import event
from shared.net.api import Headers
from shared.net.grpc_server import ServerCall
from shared.pb.laya.v1.openai_pb2 import HttpRequest

GENERATING: Final = frozenset((bodies.CHAT, bodies.COMPLETIONS, bodies.RESPONSES, bodies.EMBEDDINGS))
ROUTES: Final[dict[str, str]] = {
    **dict.fromkeys(GENERATING, "POST"),
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/v1/models": "GET",
}
DISCONNECT_GRACE = 0.25  # seconds in which an application may end by itself once it knows that its client is gone
CANCEL_GRACE = 5.0

_TO_APP = frozenset((b"content-type", b"accept", b"user-agent", names.TRACEPARENT, names.TRACESTATE))
_NOT_TO_CLIENT = frozenset(
    b"connection keep-alive proxy-connection transfer-encoding upgrade te trailer content-length server date".split()
)


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
        resumed = request.resumed
        if resumed is None:
            try:
                await self._serve(request, call, reply)
            except LayaError as e:
                await _refuse(reply, e)
            return
        # The client has an answer already: a refusal is for the router.
        with self._door.resuming(True) as attempt:
            if attempt is not None:
                reply.tell_resumed(partial(attempt.went_on, resumed.delivered))
            await self._serve(request, call, reply)

    async def _serve(self, request: WebRequest, call: Call, reply: WebReply) -> None:
        path, _, query = request.target.partition("?")
        _check_route(request.method, path)
        serving = self._state.serving
        if path in GENERATING:
            await self._generate(serving, path, query, request, call, reply)
        elif request.resumed is not None:
            raise resume.inexact("this path is not replayed")
        else:
            await self._run(serving, path, query, request, request.body, call, reply, None)

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
        need = self._need(plan, prompts, request.resumed)
        why = (
            journal.tunnel_refusal(plan, len(prompts), call, serving.engine) if call.journal or request.resumed else ""
        )
        if why and request.resumed is not None:
            raise resume.inexact(why)
        raw = bodies.encode(body) if plan.changed else request.body
        visit = self._door.visit("openai", call, need, plan.priority, arrived)
        visit.stop = reply.stop
        visit.migratable = call.journal and reply.grant(why, visit.pin)
        async with visit:
            if visit.trace is not None:
                visit.trace.about(path, self._state.names[0], plan.max_new_tokens, plan.sequences)
            await self._run(serving, path, query, request, raw, call, reply, visit)

    def _need(self, plan: bodies.Plan, prompts: Sequence[int], resumed: Resumed | None) -> Need:
        if resumed is None:
            return Need(prompts, plan.max_new_tokens, plan.sequences)
        if len(prompts) != 1 or plan.sequences != 1:
            raise resume.inexact("only one completion of one prompt can be replayed")
        return resumed_need(prompts[0], plan.max_new_tokens, resumed)

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
        if request.resumed is not None:
            context.run(past.set, request.resumed.past)
        if reply.handed is not None:
            context.run(pulled.set, reply.handed)
        inside = visit.trace.header if visit is not None and visit.trace is not None else None
        scope = _scope(request, path, query, len(body), call, inside)
        app = serving.engine.asgi_app()
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            _invoke(app, scope, io), name="openai-app", context=context
        )
        io.task = task
        try:
            # Not ``await task``: a cancellation must reach the application as a disconnect first.
            await asyncio.wait({task})
        except asyncio.CancelledError:
            io.disconnect()
            await _wind_down(task)
            raise
        error = None if task.cancelled() else task.exception()
        if io.failure is not None:
            raise io.failure
        if error is not None and not io.ended:
            self._broken(error, path, io, reply)

    def _broken(self, error: BaseException, path: str, io: _AppIO, reply: WebReply) -> None:
        """The application raised instead of answering."""
        if isinstance(error, Inexact):
            raise resume.inexact(str(error)) from None
        if isinstance(error, EngineError):
            told = self._state.engine_error(error)
            raise engine_dead() if error.fatal and reply.handed is not None else told from error
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
        resumed = resume.taken(request.resume if request.HasField("resume") else None, about)
        web = WebRequest(request.method, request.target, headers, request.body, resumed)
        await self._front.serve(web, about, TunnelReply(call, resumed))


class _AppIO:
    """ASGI receive and send of one request."""

    __slots__ = ("_body", "_engine", "_gone", "_reply", "_visit", "ended", "failure", "started", "task")

    def __init__(self, reply: WebReply, body: bytes, visit: Visit | None, engine: str) -> None:
        self._reply = reply
        self._body: bytes | None = body
        self._visit = visit
        self._engine = engine.encode()
        self._gone = asyncio.Event()
        self.failure: LayaError | None = None  # why the answer cannot go on, whatever the application has to say
        self.task: asyncio.Task[None] | None = None  # the application's
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
        try:
            await self._pass(message)
        except LayaError as e:
            self.failure = e
            self._gone.set()
            if self.task is not None:
                self.task.cancel()

    async def _pass(self, message: MutableMapping[str, Any]) -> None:
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


def _scope(
    request: WebRequest, path: str, query: str, size: int, call: Call, traceparent: bytes | None = None
) -> Scope:
    """What the application is called with. ``traceparent`` is the node's own span, in place of the caller's."""
    headers = [(name, value) for name, value in request.headers if name in _TO_APP]
    if request.method == "POST":
        headers.append((b"content-length", b"%d" % size))
        if not any(name == b"content-type" for name, _ in headers):
            headers.append((b"content-type", b"application/json"))
    if traceparent is not None:
        headers = [pair for pair in headers if pair[0] != names.TRACEPARENT] + [(names.TRACEPARENT, traceparent)]
    elif call.traceparent is not None and not any(name == names.TRACEPARENT for name, _ in headers):
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
