"""vLLM's own OpenAI-compatible application, built in this process, and the questions the node asks of its parts.

Prompts are rendered and counted by the very objects that serve the application's requests, so a count here is the
``usage.prompt_tokens`` of the answer. vLLM renders in threads of its own; nothing here holds up the event loop.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from inference_node.engines.base import ASGIApp, BadRequest, Message, Prompt
from inference_node.engines.vllm_convert import client_error
from inference_node.engines.vllm_load import sentence

_LIFESPAN_LIMIT = 30.0  # seconds for the application to start or to stop
_TURN_FLAGS = ("add_generation_prompt", "continue_final_message", "add_special_tokens")


class OpenAIApp:
    """The application and its renderers; made by ``build``."""

    def __init__(self, app: Any, tasks: Sequence[str]) -> None:
        self.app: ASGIApp = app
        self._state = app.state
        self._tasks = tasks
        self._lifespan = _Lifespan(app)
        self._counters: dict[str, Callable[[dict[str, Any]], Awaitable[Sequence[int]]]] = {
            "/v1/chat/completions": self._count_chat,
            "/v1/completions": self._count_completion,
            "/v1/responses": self._count_response,
            "/v1/embeddings": self._count_embedding,
        }

    @property
    def generates(self) -> bool:
        """Whether the model generates text."""
        return "generate" in self._tasks

    @property
    def embeds(self) -> bool:
        """Whether the model makes one vector of a text."""
        return "embed" in self._tasks

    async def chats(self) -> bool:
        """Whether the model has a chat template that takes a plain conversation."""
        if not self.generates:
            return False
        try:
            await self.render_chat([Message("user", "Hello")], {})
        except BadRequest:
            return False
        return True

    async def start(self) -> None:
        """Run the application's own start-up."""
        await self._lifespan.start()

    async def stop(self) -> None:
        """Run the application's own shutdown. Never raises."""
        await self._lifespan.stop()

    def lora(self, name: str) -> Any:
        """The adapter of that name, None for "". Raises BadRequest for one that is not loaded."""
        if not name:
            return None
        known: Mapping[str, Any] = self._state.openai_serving_models.lora_requests
        if name not in known:
            raise BadRequest(f"lora {name!r} is not loaded here, which has {_listed(known)}", "lora")
        return known[name]

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text prompt as /v1/completions makes them. Raises BadRequest."""
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        renderer = self._state.engine_client.renderer
        try:
            parsed = parse_model_prompt(self._state.engine_client.model_config, text)
            (rendered,) = await renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params)
        except Exception as e:
            raise client_error(e) from e
        return list(rendered["prompt_token_ids"])

    async def render_chat(self, messages: Sequence[Message], template_kwargs: dict[str, Any]) -> Prompt:
        """A conversation as /v1/chat/completions renders it. Raises BadRequest."""
        self._need(self.generates, "the model does not chat")
        kwargs = dict(template_kwargs)
        body: dict[str, Any] = {name: kwargs.pop(name) for name in _TURN_FLAGS if name in kwargs}
        body["messages"] = [_turn(message) for message in messages]
        if kwargs:
            body["chat_template_kwargs"] = kwargs
        (rendered,) = await self._render_chat(body)
        return Prompt(rendered["prompt_token_ids"], rendered.get("prompt"))

    async def count(self, path: str, body: dict[str, Any]) -> Sequence[int]:
        """Prompt tokens of each prompt in a request body. Raises BadRequest for what the application would refuse."""
        counter = self._counters.get(path)
        if counter is None:
            raise BadRequest(f"prompts of {path} cannot be counted; use {' or '.join(self._counters)}")
        try:
            return await counter(body)
        except BadRequest:
            raise
        except Exception as e:
            raise client_error(e) from e

    async def _count_chat(self, body: dict[str, Any]) -> Sequence[int]:
        self._need(self.generates, "the model does not chat")
        return _lengths(await self._render_chat(body))

    async def _render_chat(self, body: dict[str, Any]) -> Sequence[Any]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        request = _parsed(ChatCompletionRequest, body)
        serving = self._state.openai_serving_chat
        _refused(await serving._check_model(request))
        try:
            result = await self._state.online_renderer.render_chat(request, skip_mm_cache=True)
        except Exception as e:
            raise client_error(e) from e
        _conversation, rendered = _refused(result)
        return list(rendered)

    async def _count_completion(self, body: dict[str, Any]) -> Sequence[int]:
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        self._need(self.generates, "the model does not complete text")
        request = _parsed(CompletionRequest, body)
        _refused(await self._state.openai_serving_completion._check_model(request))
        rendered = _refused(await self._state.online_renderer.render_completion(request, skip_mm_cache=True))
        check = self._state.engine_client.renderer.validate_token_ids
        for entry in rendered:
            # The application finds out about a client's own token ids only when its answer has begun.
            check(entry.get("prompt_token_ids") or (), parameter="prompt")
        return _lengths(rendered)

    async def _count_response(self, body: dict[str, Any]) -> Sequence[int]:
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

        self._need(self.generates, "the model does not respond")
        request = _parsed(ResponsesRequest, body)
        if request.previous_response_id is not None:
            raise BadRequest("responses are not stored; send the whole conversation as input", "previous_response_id")
        _refused(await self._state.openai_serving_responses._check_model(request))
        return _lengths([_refused(await self._state.online_renderer.render_responses(request)).engine_input])

    async def _count_embedding(self, body: dict[str, Any]) -> Sequence[int]:
        from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest

        self._need(self.embeds, "the model has no embeddings")
        request = _parsed(EmbeddingRequest, body)
        serving = self._state.serving_embedding
        processor = serving.get_io_processor(request)
        context = await serving._init_ctx(processor, request)
        await serving._preprocessing(processor, context)
        inputs = context.original_engine_inputs or context.engine_inputs
        return _lengths([entry["prompts"] for entry in inputs])

    def _need(self, able: bool, why: str) -> None:
        if not able:
            raise BadRequest(f"{why}; its tasks are {_listed(self._tasks)}")


async def build(llm: Any, args: Namespace) -> OpenAIApp:
    """The application over a running engine. Raises ConfigError-like ValueErrors of vLLM's for arguments it refuses."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    tasks = await llm.get_supported_tasks()
    app = build_app(args, tasks, llm.model_config)
    await init_app_state(llm, app.state, args, tasks)
    # When the engine is dead, vLLM tells the server it expects here to end the process; the node sees to that itself.
    app.state.server = SimpleNamespace(should_exit=False)
    return OpenAIApp(app, tasks)


def preload(model_config: Any) -> None:
    """Import and read what ``build`` needs, while the engine core loads the model."""
    import vllm.entrypoints.generate.api_router
    import vllm.entrypoints.launchers.api_server.app_state
    import vllm.entrypoints.launchers.app
    import vllm.entrypoints.openai.responses.serving
    import vllm.entrypoints.scale_out.factories  # noqa: F401
    from vllm.renderers.hf import resolve_chat_template
    from vllm.tokenizers.registry import cached_tokenizer_from_config

    # Looks for a processor's template first, which reads the tokenizer once more. A model without one says so later.
    with suppress(Exception):
        resolve_chat_template(cached_tokenizer_from_config(model_config), None, None, model_config=model_config)


class _Lifespan:
    """Runs an ASGI application's lifespan: start-up now, shutdown when asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._done = {"startup": asyncio.Event(), "shutdown": asyncio.Event()}
        self._failure = ""

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="vllm-app-lifespan")
        self._inbox.put_nowait({"type": "lifespan.startup"})
        async with asyncio.timeout(_LIFESPAN_LIMIT):
            await self._done["startup"].wait()
        if self._failure:
            raise RuntimeError(f"vLLM's application did not start: {self._failure}")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._inbox.put_nowait({"type": "lifespan.shutdown"})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LIFESPAN_LIMIT):
                await self._done["shutdown"].wait()
        self._task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._task
        self._task = None

    async def _run(self) -> None:
        try:
            await self._app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, self._inbox.get, self._send)
        except Exception as e:
            self._failure = self._failure or sentence(e)
        finally:
            for event in self._done.values():
                event.set()

    async def _send(self, message: Any) -> None:
        _, step, result = message["type"].split(".")
        if result == "failed":
            self._failure = str(message.get("message", "")) or "no reason given"
        self._done[step].set()


def _turn(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        turn["name"] = message.name
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _parsed(kind: Any, body: dict[str, Any]) -> Any:
    """The body as one of vLLM's request types. Raises BadRequest with the first thing that is wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if not _is_type(part))
        text = first["msg"].removeprefix("Value error, ")
        raise BadRequest(f"{where}: {text}" if where else text, where or None) from None
    except Exception as e:
        raise client_error(e) from e


def _is_type(part: Any) -> bool:
    """Whether a part of pydantic's path names a branch of a union and not a field."""
    return isinstance(part, str) and not (part.isidentifier() and part.islower())


def _refused(result: Any) -> Any:
    """``result``, unless it is one of vLLM's error answers: then BadRequest."""
    error = getattr(result, "error", None)
    if error is not None and hasattr(error, "message"):
        raise BadRequest(error.message, error.param)
    return result


def _lengths(rendered: Sequence[Any]) -> list[int]:
    return [_length(entry) for entry in rendered]


def _length(entry: Any) -> int:
    if "decoder_prompt" in entry or "encoder_prompt" in entry:
        return sum(_length(part) for part in (entry.get("encoder_prompt"), entry.get("decoder_prompt")) if part)
    ids = entry.get("prompt_token_ids")
    return len(ids) if ids is not None else len(entry["prompt_embeds"])


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
