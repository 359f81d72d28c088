"""The SDK: ``async with LayaClient("127.0.0.1:8000", key) as c: async for token in c.generate("Once"): ...``

Typed, with deadlines; leaving a loop early or the ``async with`` cancels what runs. It sends the routing metadata, so
that a router need not look into the messages. Errors are ``LayaError``: code, reason, one sentence, and the seconds
after which to try again where the server named them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from shared import prefix
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import inference_pb2_grpc as rpc

# A silent prefill may take minutes: PINGs keep the connection known to be alive meanwhile.
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
]
_BYTES_PER_TOKEN = 4  # a fair guess for most tokenizers and languages; the node counts exactly


@dataclass(slots=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Timings:
    """Seconds. On the node: ``queue``, ``ttft``, ``total``, and ``serialise`` where ``laya-timing`` asked for it.

    On the router: ``route``, its own work before the node, and ``waited``, for a node with room. See shared/timing.py.
    """

    queue: float = 0.0
    ttft: float = 0.0
    total: float = 0.0
    serialise: float = 0.0
    route: float = 0.0
    waited: float = 0.0


@dataclass(slots=True)
class Token:
    """What came with one message: new text (``str(token)``), its ids, and on the last one usage and timings."""

    text: str
    token_ids: Sequence[int] = ()
    index: int = 0
    finish_reason: str = ""
    stop_reason: str = ""
    usage: Usage | None = None
    timings: Timings | None = None
    logprobs: Sequence[pb.PositionLogprobs] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Completion:
    """A finished answer; ``text`` is that of the first completion, ``texts`` of all."""

    text: str
    texts: list[str] = field(default_factory=list)
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    model: str = ""
    engine: str = ""
    request_id: str = ""


Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, str]] | str
_FINISH = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_ABORT: "abort",
    pb.FINISH_REASON_ERROR: "error",
}


class LayaClient:
    """A client of one router (or one node) at ``host:port``.

    ``key`` is an API key; ``timeout`` is the default deadline of a call in seconds (None: no deadline);
    ``session`` names a conversation whose KV cache should be found again. With ``root_certificates`` (PEM) or
    ``tls=True`` the connection is encrypted; ``credentials`` are gRPC's own, for client certificates. ``options`` are
    further arguments of the gRPC channel.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:8000",
        key: str | None = None,
        *,
        timeout: float | None = 600.0,
        session: str = "",
        tls: bool = False,
        root_certificates: bytes | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        channel_options = [*_OPTIONS, *options]
        if credentials is None and (tls or root_certificates):
            credentials = grpc.ssl_channel_credentials(root_certificates)
        if credentials is not None:
            self._channel = grpc.aio.secure_channel(address, credentials, options=channel_options)
        else:
            self._channel = grpc.aio.insecure_channel(address, options=channel_options)
        self._stub = rpc.InferenceStub(self._channel)  # type: ignore[no-untyped-call]
        self._timeout = timeout
        self._session = session
        self._fixed: list[tuple[str, str]] = list((metadata or {}).items())
        if key:
            self._fixed.append(("authorization", f"Bearer {key}"))

    async def __aenter__(self) -> LayaClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what runs and close the connection."""
        await self._channel.close(None)

    async def generate(
        self,
        prompt: Prompt,
        *,
        model: str = "",
        session: str = "",
        priority: int = 0,
        timeout: float | None = None,
        structured: pb.StructuredOutput | None = None,
        **sampling: Any,
    ) -> AsyncGenerator[Token, None]:
        """Complete a prompt (text or token ids), piece by piece.

        ``sampling`` takes the fields of ``SamplingParams``: max_tokens, temperature, top_p, stop, seed, n, ...
        """
        request = _generate_request(prompt, model, priority, structured, sampling)
        meta = self._metadata(model, session, priority, _prompt_tokens(prompt), request.sampling, _prefix(request))
        call = self._stub.Generate(request, timeout=timeout or self._timeout, metadata=meta)
        async with _cancelled_at_exit(call):
            async for message in call:
                yield await _timed(_token(message, message.text), call)

    async def complete(
        self,
        prompt: Prompt,
        *,
        model: str = "",
        session: str = "",
        priority: int = 0,
        timeout: float | None = None,
        structured: pb.StructuredOutput | None = None,
        **sampling: Any,
    ) -> Completion:
        """Complete a prompt in one answer."""
        request = _generate_request(prompt, model, priority, structured, sampling)
        meta = self._metadata(model, session, priority, _prompt_tokens(prompt), request.sampling, _prefix(request))
        call = self._stub.Complete(pb.CompleteRequest(request=request), timeout=timeout or self._timeout, metadata=meta)
        async with _cancelled_at_exit(call):
            answer = await call
            timings = told(_timings(answer.timings), await call.initial_metadata())
        texts = [c.text for c in answer.completions]
        return Completion(
            text=texts[0] if texts else "",
            texts=texts,
            finish_reason=_FINISH.get(answer.completions[0].finish_reason, "") if answer.completions else "",
            usage=_usage(answer.usage),
            timings=timings,
            model=answer.model,
            engine=answer.engine,
            request_id=answer.request_id,
        )

    async def chat(
        self,
        messages: Messages,
        *,
        model: str = "",
        session: str = "",
        priority: int = 0,
        timeout: float | None = None,
        structured: pb.StructuredOutput | None = None,
        **sampling: Any,
    ) -> AsyncGenerator[Token, None]:
        """Continue a conversation (or answer one question), piece by piece."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        request = pb.ChatRequest(
            model=model,
            messages=[pb.ChatMessage(**turn) for turn in turns],
            sampling=_sampling(sampling),
            structured=structured,
            priority=priority,
        )
        size = sum(len(turn.get("content", "").encode()) for turn in turns)
        chain = prefix.of_turns(request.messages) if size >= prefix.BLOCK_BYTES // 2 else ()
        meta = self._metadata(model, session, priority, _tokens_of(size), request.sampling, chain)
        call = self._stub.Chat(request, timeout=timeout or self._timeout, metadata=meta)
        async with _cancelled_at_exit(call):
            async for message in call:
                yield await _timed(_token(message, message.content), call)

    async def embed(
        self, inputs: Sequence[str], *, model: str = "", dimensions: int = 0, timeout: float | None = None
    ) -> list[list[float]]:
        """One vector per text."""
        size = sum(len(text.encode()) for text in inputs)
        meta = self._metadata(model, "", 0, _tokens_of(size), None)
        request = pb.EmbedRequest(model=model, inputs=list(inputs), dimensions=dimensions)
        call = self._stub.Embed(request, timeout=timeout or self._timeout, metadata=meta)
        async with _cancelled_at_exit(call):
            answer = await call
        return [list(e.values) for e in answer.embeddings]

    async def models(self, *, timeout: float | None = 10.0) -> list[pb.ModelInfo]:
        """The models that can be asked for."""
        call = self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout, metadata=tuple(self._fixed))
        async with _cancelled_at_exit(call):
            return list((await call).models)

    def _metadata(
        self,
        model: str,
        session: str,
        priority: int,
        prompt_tokens: int,
        sampling: pb.SamplingParams | None,
        chain: tuple[int, ...] = (),
    ) -> tuple[tuple[str, str], ...]:
        """The routing fields, so that a router need not scan the message."""
        meta = [*self._fixed, ("laya-model", model), ("laya-prompt-tokens", str(prompt_tokens))]
        if session or self._session:
            meta.append(("laya-session", session or self._session))
        if priority:
            meta.append(("laya-priority", str(priority)))
        if chain:
            meta.append(("laya-prefix", prefix.to_header(chain)))
        if sampling is not None and sampling.HasField("max_tokens"):
            meta.append(("laya-max-tokens", str(sampling.max_tokens * max(1, sampling.n))))
        return tuple(meta)


@contextlib.asynccontextmanager
async def _cancelled_at_exit(call: Any) -> AsyncIterator[None]:
    """Turn gRPC errors into LayaError, and cancel the call however the block is left."""
    try:
        yield
    except grpc.aio.AioRpcError as e:
        raise to_laya_error(e) from None
    finally:
        call.cancel()


def to_laya_error(e: grpc.aio.AioRpcError) -> LayaError:
    """The LayaError that a gRPC error carries in its details."""
    from google.rpc import error_details_pb2, status_pb2

    reason, retry_after, metadata = "", None, None
    # grpcio's own errors (a refused connection, say) carry no details.
    trailing: dict[str, str | bytes] = dict(e.trailing_metadata() or ())  # type: ignore[arg-type]
    packed = trailing.get("grpc-status-details-bin")
    status = status_pb2.Status()
    if isinstance(packed, bytes):
        status.ParseFromString(packed)
    for detail in status.details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToMilliseconds() / 1000
    code = Code(e.code().value[0])
    return LayaError(code, reason, e.details() or code.name, retry_after=retry_after, metadata=metadata)


def _generate_request(
    prompt: Prompt, model: str, priority: int, structured: pb.StructuredOutput | None, sampling: dict[str, Any]
) -> pb.GenerateRequest:
    request = pb.GenerateRequest(model=model, sampling=_sampling(sampling), structured=structured, priority=priority)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def _prefix(request: pb.GenerateRequest) -> tuple[int, ...]:
    """Hashes of the prompt's blocks, so that the router finds the node that has seen its beginning."""
    if request.WhichOneof("prompt") == "text":
        return prefix.of_text(request.text)
    return prefix.of_ids(request.token_ids) if request.token_ids.ids else ()


def _sampling(given: dict[str, Any]) -> pb.SamplingParams:
    known = pb.SamplingParams.DESCRIPTOR.fields_by_name
    for name in given:
        if name not in known:
            raise TypeError(f"unknown sampling parameter {name!r}; known are {', '.join(sorted(known))}")
    stop = given.get("stop")
    if isinstance(stop, str):
        given = {**given, "stop": [stop]}
    return pb.SamplingParams(**{name: value for name, value in given.items() if value is not None})


def _tokens_of(size: int) -> int:
    return max(1, size // _BYTES_PER_TOKEN)


def _prompt_tokens(prompt: Prompt) -> int:
    return _tokens_of(len(prompt.encode())) if isinstance(prompt, str) else len(prompt)


def _token(message: pb.GenerateResponse | pb.ChatResponse, text: str) -> Token:
    return Token(
        text=text,
        token_ids=message.token_ids,
        index=message.index,
        finish_reason=_FINISH.get(message.finish_reason, ""),
        stop_reason=message.stop_reason,
        usage=_usage(message.usage) if message.HasField("usage") else None,
        timings=_timings(message.timings) if message.HasField("timings") else None,
        logprobs=message.logprobs,
    )


def _usage(usage: pb.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


def _timings(timings: pb.Timings) -> Timings:
    return Timings(timings.queue_seconds, timings.ttft_seconds, timings.total_seconds, timings.serialise_seconds)


async def _timed(token: Token, call: Any) -> Token:
    if token.timings is not None:
        told(token.timings, await call.initial_metadata())
    return token


def told(timings: Timings, metadata: Iterable[tuple[str, Any]] | None) -> Timings:
    """The same with what the router says in the metadata that begins an answer."""
    for name, value in metadata or ():
        if name == "laya-router-us":
            timings.route = int(value) / 1e6
        elif name == "laya-queue-us":
            timings.waited = int(value) / 1e6
    return timings
