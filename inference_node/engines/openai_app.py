"""An OpenAI-compatible ASGI application for engines that bring none.

Chat, completions (both streamed or not), embeddings, models, tokenize and detokenize. Every answer carries the header
``x-laya-engine`` with the engine's name, and completions have that as their fingerprint.
"""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Awaitable, Callable, MutableMapping
from itertools import count
from typing import Any

import msgspec

from inference_node import sampling as checks
from inference_node.engines.base import BadRequest, EngineError, GenerateCall, Prompt, Receive, Sampling, Scope, Send
from inference_node.engines.context import past
from inference_node.engines.openai_bodies import (
    ChatBody,
    CommonBody,
    CompletionBody,
    EmbeddingBody,
    LocalEngine,
    chat_prompt,
    convert,
    sampling_of,
    text_prompts,
)
from inference_node.engines.openai_replies import ChatShape, CompletionShape, Shape, answer, stream
from shared.errors import Code, LayaError, invalid

MAX_N = 128
_encode = msgspec.json.Encoder().encode
Reply = tuple[int, Any]


class LocalOpenAI:
    """The application; one per engine."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._ids = count(1)
        self._started = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[dict[str, Any]], Awaitable[Reply]]] = {
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
        }
        self._paths = {path for _, path in self._routes} | {"/v1/chat/completions", "/v1/completions"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        name = self._engine.name
        if scope["type"] != "http":
            raise ValueError(f"the {name} application serves HTTP, not {scope['type']}")
        out = _Response(send, name.encode())
        method, path = scope["method"], scope["path"]
        try:
            if path not in self._paths:
                raise LayaError(Code.NOT_FOUND, "INVALID_REQUEST", f"the {name} engine has no {path}")
            body = await _read_json(receive) if method == "POST" else {}
            route = self._routes.get((method, path))
            if route is not None:
                status, value = await route(body)
                await out.whole(status, _encode(value))
            elif method == "POST":
                await self._generate(path, body, out, _request_id(scope, name, self._ids))
            else:
                raise LayaError(
                    Code.INVALID_ARGUMENT, "INVALID_REQUEST", f"{path} does not take {method}", http_status=405
                )
        except BadRequest as e:
            await out.error(invalid(str(e), e.param))
        except EngineError as e:
            await out.error(LayaError(Code.INTERNAL, "ENGINE_FAILED", f"the {name} engine failed: {e}"))
        except LayaError as e:
            await out.error(e)

    async def _generate(self, path: str, raw: dict[str, Any], out: _Response, request_id: str) -> None:
        engine = self._engine
        body: CommonBody
        shape: Shape
        self.check_body(raw)
        if path == "/v1/chat/completions":
            chat = convert(raw, ChatBody)
            body = chat
            shape = ChatShape(f"chatcmpl-{request_id}", self._model(chat.model), int(time.time()), engine.name)
            prompts = [await chat_prompt(engine, chat)]
            wanted = chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens
            logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
            if chat.tool_choice not in (None, "none", "auto"):
                raise BadRequest(f"the {engine.name} engine calls no tools", "tool_choice")
        else:
            text = convert(raw, CompletionBody)
            body = text
            shape = CompletionShape(f"cmpl-{request_id}", self._model(text.model), int(time.time()), engine.name)
            prompts = await text_prompts(engine, text.prompt, "prompt")
            wanted, logprobs = text.max_tokens, text.logprobs
            if text.echo or text.suffix or (text.best_of or 1) > (text.n or 1):
                raise BadRequest(f"the {engine.name} engine has no echo, suffix or best_of", "echo")
        calls = self._calls(body, prompts, wanted, logprobs, request_id)
        for call in calls:
            await self.prepare(call)
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            await out.start(200, b"text/event-stream; charset=utf-8")
            await stream(engine, calls, shape, usage, out.chunk)
            await out.end()
        else:
            await out.whole(200, await answer(engine, calls, shape))

    def _calls(
        self, body: CommonBody, prompts: list[Prompt], wanted: int | None, logprobs: int | None, request_id: str
    ) -> list[GenerateCall]:
        info = self._engine.info
        calls = []
        for i, prompt in enumerate(prompts):
            room = info.max_seq_len - len(prompt.token_ids)
            if room < 1 or (wanted is not None and wanted > room):
                raise BadRequest(
                    f"this model's context is {info.max_seq_len} tokens; the prompt has {len(prompt.token_ids)} "
                    f"and {wanted or 1} more were asked for; shorten the prompt or lower max_tokens",
                    "max_tokens",
                )
            most = min(self._engine.default_max_tokens, room) if wanted is None else wanted
            checks.check_max_tokens(most, info.max_seq_len, "max_tokens")
            sampling = self.sampling(body, most, logprobs)
            checks.check(sampling, MAX_N)
            call = GenerateCall(f"{request_id}-{i}", prompt, sampling, body.priority, body.cache_salt or "")
            call.past = past.get()
            self._engine.check_call(call)
            calls.append(call)
        return calls

    def sampling(self, body: CommonBody, max_tokens: int, logprobs: int | None) -> Sampling:
        """The sampling parameters of a body. Raises BadRequest."""
        return sampling_of(body, max_tokens, logprobs)

    async def prepare(self, call: GenerateCall) -> None:
        """Raise BadRequest for what takes a while to find out: nothing of the answer is out yet."""
        return None

    def check_body(self, body: dict[str, Any]) -> None:
        """Raise BadRequest for keys of a generating body that the engine must not leave unheard."""
        return None

    def _model(self, name: str | None) -> str:
        names = self._engine.names
        if name is not None and name not in names:
            raise LayaError(
                Code.NOT_FOUND,
                "MODEL_NOT_FOUND",
                f"there is no model {name!r}; there is {', '.join(names)}",
                param="model",
            )
        return name or names[0]

    async def _embeddings(self, raw: dict[str, Any]) -> Reply:
        body = convert(raw, EmbeddingBody)
        model = self._model(body.model)
        if body.encoding_format not in ("float", "base64"):
            raise BadRequest("encoding_format must be float or base64", "encoding_format")
        prompts = await text_prompts(self._engine, body.input, "input")
        vectors = await self._engine.embed(f"embd-{next(self._ids)}", prompts, body.dimensions or 0)
        data = []
        for i, vector in enumerate(vectors):
            value: Any = vector
            if body.encoding_format == "base64":
                value = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            data.append({"object": "embedding", "index": i, "embedding": value})
        tokens = sum(len(prompt.token_ids) for prompt in prompts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return 200, {"object": "list", "data": data, "model": model, "usage": usage}

    async def _models(self, raw: dict[str, Any]) -> Reply:
        info = self._engine.info
        data = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": f"laya-{self._engine.name}",
                "root": info.model,
                "max_model_len": info.max_seq_len,
            }
            for name in self._engine.names
        ]
        return 200, {"object": "list", "data": data}

    async def _tokenize(self, raw: dict[str, Any]) -> Reply:
        self._model(raw.get("model"))
        if "messages" in raw:
            prompt = await chat_prompt(self._engine, convert(raw, ChatBody))
        else:
            text = raw.get("prompt")
            if not isinstance(text, str):
                raise BadRequest("prompt must be a text", "prompt")
            prompt = Prompt(await self._engine.tokenize(text))
        tokens = prompt.token_ids
        return 200, {"tokens": tokens, "count": len(tokens), "max_model_len": self._engine.info.max_seq_len}

    async def _detokenize(self, raw: dict[str, Any]) -> Reply:
        self._model(raw.get("model"))
        tokens = raw.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) and self._engine.is_token(t) for t in tokens):
            raise BadRequest("tokens must be a list of token ids of the vocabulary", "tokens")
        return 200, {"prompt": self._engine.text_of(tokens)}


class _Response:
    """One ASGI answer."""

    __slots__ = ("_engine", "_send", "started")

    def __init__(self, send: Send, engine: bytes) -> None:
        self._send = send
        self._engine = engine
        self.started = False

    async def start(self, status: int, content_type: bytes) -> None:
        self.started = True
        headers = [(b"content-type", content_type), (b"x-laya-engine", self._engine)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def chunk(self, data: bytes) -> None:
        message: MutableMapping[str, Any] = {"type": "http.response.body", "body": data, "more_body": True}
        await self._send(message)

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, data: bytes, content_type: bytes = b"application/json") -> None:
        await self.start(status, content_type)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def error(self, error: LayaError) -> None:
        """The error as the whole answer, or as a last event of a stream that has begun."""
        body = error.openai_body()
        if self.started:
            await self.chunk(b"data: " + body + b"\n\ndata: [DONE]\n\n")
            await self.end()
        else:
            await self.whole(error.http_status, body)


async def prompts_of(engine: LocalEngine, path: str, body: dict[str, Any]) -> list[Prompt]:
    """The prompts of a body, as the application will read them. Raises BadRequest, or NOT_FOUND for a path it lacks."""
    if path == "/v1/chat/completions":
        return [await chat_prompt(engine, convert(body, ChatBody))]
    if path == "/v1/completions":
        return await text_prompts(engine, convert(body, CompletionBody).prompt, "prompt")
    if path == "/v1/embeddings":
        return await text_prompts(engine, convert(body, EmbeddingBody).input, "input")
    raise LayaError(Code.NOT_FOUND, "INVALID_REQUEST", f"the {engine.name} engine has no {path}")


async def _read_json(receive: Receive) -> dict[str, Any]:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise LayaError(Code.CANCELLED, "INVALID_REQUEST", "the client went away before its request was whole")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    try:
        value = msgspec.json.decode(b"".join(parts))
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise BadRequest(f"the body is not valid JSON: {e}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    return value


def _request_id(scope: Scope, engine: str, ids: count[int]) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return str(value.decode("latin-1"))
    return f"{engine}-{next(ids)}"
