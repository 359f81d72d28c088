"""The engine that serves a GGUF file as it is: llama.cpp, by its C interface, batching continuously.

The pieces: ``llama_cpp_args`` and ``llama_cpp_memory`` decide what it takes, ``llama_cpp_native`` is the C interface,
``llama_cpp_scheduler`` chooses each step, ``llama_cpp_worker`` runs them in a thread of its own, ``llama_cpp_sampler``
draws tokens, ``llama_cpp_chat`` and ``llama_cpp_grammar`` read templates and grammars, ``llama_cpp_openai`` is the
application. This module starts them, wires them and stops them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

from inference_node.config import model_names
from inference_node.engines import llama_cpp_args, llama_cpp_checks, llama_cpp_memory
from inference_node.engines.base import (
    ASGIApp,
    BadRequest,
    Delta,
    Engine,
    EngineError,
    EngineInfo,
    EngineStats,
    Finished,
    GenerateCall,
    Message,
    Prompt,
    Sampling,
)
from inference_node.engines.context import pulled, signal_first_token
from inference_node.engines.llama_cpp_chat import ChatTemplate
from inference_node.engines.llama_cpp_grammar import grammar_of
from inference_node.engines.llama_cpp_native import Context, Library, Model, NativeError
from inference_node.engines.llama_cpp_openai import LlamaOpenAI
from inference_node.engines.llama_cpp_sampler import Defaults, make_grammar
from inference_node.engines.llama_cpp_scheduler import Limits, Scheduler
from inference_node.engines.llama_cpp_sequence import LlamaRequest
from inference_node.engines.llama_cpp_worker import News, Worker
from inference_node.engines.openai_app import prompts_of
from inference_node.limits import long_prefill_threshold
from shared import logging as logs
from shared.config.schema import InferenceConfig

BLOCK_TOKENS = 16  # cells that admission counts at once; llama.cpp itself has no blocks
_JOIN = 15.0  # seconds for the step in progress to end
_INLINE = 4096  # characters that are tokenized without a thread: well under a millisecond
_GRAMMARS = 32  # that are kept

_log = logs.get("engine")
T = TypeVar("T")


class LlamaCppEngine(Engine):
    """See the module's docstring."""

    name = "llama_cpp"

    def __init__(self, config: InferenceConfig) -> None:
        """Plan for the file and the memory there is. Raises EngineUnavailable, or ConfigError with the sums."""
        self._config = config
        self._library = Library.load()
        self._settings = llama_cpp_args.settings(config, offload=self._library.offloads)
        self._cores = llama_cpp_args.cores(config)
        self._path, self._room = llama_cpp_memory.settle(config, self._settings, self._library.offloads)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llama-helper")
        self._stopping = False
        self._model: Model | None = None
        self._context: Context | None = None
        self._worker: Worker | None = None
        self._template: ChatTemplate | None = None
        self._info: EngineInfo | None = None
        self._app: ASGIApp | None = None
        self._requests: dict[LlamaRequest, None] = {}
        self._grammars: OrderedDict[tuple[object, ...], str] = OrderedDict()
        self._finished: Callable[[Finished], None] | None = None

    @property
    def info(self) -> EngineInfo:
        """What ``start`` returned."""
        if self._info is None:
            raise EngineError("the engine is not running")
        return self._info

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model, its own first."""
        return model_names(self._config)

    @property
    def default_max_tokens(self) -> int:
        """New tokens for a request of the application that names none."""
        return self._config.default_max_tokens

    async def start(self) -> EngineInfo:
        """Load the file, take the cells, start the thread, warm up."""
        begin = time.perf_counter()
        try:
            model = await self._in_thread(self._load)
            context = await self._in_thread(self._open, model)
            self._info = self._describe(model, context)
            self._worker = self._make_worker(model, context, self._info)
            self._worker.start(self._deliver)
            loaded = time.perf_counter()
            await self._warm_up(self._info)
        except NativeError as e:
            raise EngineError(f"llama.cpp could not start {self._config.model}: {e}", fatal=True) from e
        logs.event(
            _log,
            logging.INFO,
            "engine_started",
            load_s=round(loaded - begin, 2),
            all_s=round(time.perf_counter() - begin, 2),
            cells=context.cells,
            n_threads=self._settings.n_threads,
            quantization=self._info.quantization,
        )
        return self._info

    def _load(self) -> Model:
        """Kept from here on, so that ``stop`` finds it also when nobody waits for this any more."""
        model = self._model = Model(self._library, self._path, self._settings, lambda: not self._stopping)
        if not model.generates:
            raise NativeError("the model is no decoder of text; this engine generates text alone")
        if model.chat_template:
            try:
                self._template = ChatTemplate(model.chat_template, model.special("bos"), model.special("eos"))
            except ValueError as e:
                logs.event(_log, logging.WARNING, "no_chat", why=str(e))
        return model

    def _open(self, model: Model) -> Context:
        context = self._context = Context(model, self._settings, self._room.cells, self._room.max_num_seqs)
        return context

    def _describe(self, model: Model, context: Context) -> EngineInfo:
        return EngineInfo(
            engine=self.name,
            model=self.names[0],
            revision=self._config.revision,
            max_seq_len=min(self._room.max_seq_len, context.cells),
            quantization=model.quantization,
            kv_block_tokens=BLOCK_TOKENS,
            kv_blocks=context.cells // BLOCK_TOKENS,
            max_num_seqs=self._room.max_num_seqs,
            max_prefill_tokens=self._settings.n_batch,
            supports_chat=self._template is not None,
        )

    def _make_worker(self, model: Model, context: Context, info: EngineInfo) -> Worker:
        limits = Limits(
            step_tokens=info.max_prefill_tokens,
            sequences=info.max_num_seqs,
            cells=context.cells,
            long_prefill_tokens=long_prefill_threshold(self._config.long_prompt_tokens, info.max_prefill_tokens),
            shares_prompts=model.shares_prompts,
        )
        defaults = Defaults.of(model)
        return Worker(model, context, Scheduler(limits), defaults, self._cores, info.max_seq_len)

    async def _warm_up(self, info: EngineInfo) -> None:
        """A first request each way, so that no client waits for buffers; then the counters begin."""
        tokens = (await self.tokenize("Hello"))[: max(info.max_seq_len - 2, 1)]
        if info.max_seq_len > 1:
            for sampling in (Sampling(2, temperature=0.0, logprobs=1), Sampling(1, seed=1)):
                call = GenerateCall("warm-up", Prompt(tokens), sampling)
                async with aclosing(self.generate(call)) as deltas:
                    async for _ in deltas:
                        pass
        if self._template is not None:
            await self.render_chat([Message("user", "Hello")], {})
        self.asgi_app()
        if self._worker is not None:
            self._worker.stats = EngineStats()

    async def stop(self) -> None:
        """End the thread after its step, then free everything. A thread that hangs keeps its memory."""
        self._stopping = True
        worker, self._worker = self._worker, None
        ended = worker is None or await asyncio.to_thread(worker.join, _JOIN)
        self._fail(EngineError("the engine was stopped", fatal=True))
        if not ended:
            logs.event(_log, logging.ERROR, "engine_does_not_stop", seconds=_JOIN)
            return
        try:
            await self._in_thread(self._free)
        except Exception as e:
            logs.event(_log, logging.WARNING, "engine_stop_failed", exc_info=e)
        self._thread.shutdown(wait=False)

    def _free(self) -> None:
        context, model = self._context, self._model
        self._context = self._model = None
        if context is not None:
            context.close()
        if model is not None:
            model.close()
        self._library.close()

    async def tokenize(self, text: str) -> Sequence[int]:
        """Token ids of a text prompt, with what the model wants before it."""
        model = self._loaded()
        try:
            if len(text) <= _INLINE:
                return model.tokenize(text, whole=True)
            return await self._in_thread(lambda: model.tokenize(text, whole=True))
        except UnicodeEncodeError:
            raise BadRequest("the text holds half of a surrogate pair, which is no character", "prompt") from None

    async def render_chat(self, messages: Sequence[Message], template_kwargs: dict[str, Any]) -> Prompt:
        """Render a conversation by the template in the file."""
        return await self._in_thread(self._render, messages, template_kwargs)

    def _render(self, messages: Sequence[Message], template_kwargs: dict[str, Any]) -> Prompt:
        model = self._loaded()
        if self._template is None:
            raise BadRequest("the model's file has no chat template; ask for a completion instead", "messages")
        text = self._template.render(messages, template_kwargs)
        try:
            tokens = model.tokenize(text, whole=False)
        except UnicodeEncodeError:
            raise BadRequest("the messages hold half of a surrogate pair, which is no character", "messages") from None
        if model.adds_bos and tokens[:1] != [model.bos]:
            tokens.insert(0, model.bos)
        return Prompt(tokens, text)

    def is_token(self, token: int) -> bool:
        """Whether the vocabulary has it."""
        return 0 <= token < self._loaded().tokens

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special ones included."""
        model = self._loaded()
        return b"".join(model.piece(token, True) for token in tokens).decode("utf-8", "replace")

    async def grammar(self, sampling: Sampling) -> str:
        """The grammar that an answer must follow, read by llama.cpp once; empty for none. Raises BadRequest."""
        forms = (sampling.json_schema, sampling.json_object, sampling.regex, sampling.grammar)
        key = (*forms, tuple(sampling.choice or ()))
        if not any(key):
            return ""
        found = self._grammars.get(key)
        if found is None:
            found = self._grammars[key] = await self._in_thread(self._read_grammar, sampling)
            while len(self._grammars) > _GRAMMARS:
                self._grammars.popitem(last=False)
        return found

    def _read_grammar(self, sampling: Sampling) -> str:
        model, text = self._loaded(), grammar_of(sampling)
        model.api.llama_sampler_free(make_grammar(model, text))
        return text

    def check_call(self, call: GenerateCall) -> None:
        """Raise BadRequest for what the engine cannot do for this call."""
        llama_cpp_checks.check(call, self._loaded().tokens, self.info.max_seq_len)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        """Run one request; closing the generator ends it before the next step."""
        if call.past is not None:
            raise call.past.fail(self.cannot_continue(call.sampling))
        self.check_call(call)
        grammar = await self.grammar(call.sampling)
        worker, listener = self._worker, pulled.get()
        if worker is None or not worker.alive:
            raise EngineError("the engine is not running", fatal=True)
        request = LlamaRequest(call, grammar, self._loaded(), self.info.max_seq_len)
        self._requests[request] = None
        worker.submit(request)
        told = False
        try:
            while request.live:
                await _until_ready(request)
                if request.failed is not None:
                    if listener is not None:
                        listener.died()
                    raise request.failed
                ready, request.ready = request.ready, []
                if not told:
                    told = True
                    signal_first_token(0)
                for delta in ready:
                    request.live -= bool(delta.finish_reason)
                    if listener is not None:
                        listener.tell(delta.token_ids, delta.finish_reason)
                    yield delta
        finally:
            self._requests.pop(request, None)
            if request.live:
                worker.abort(request)

    async def embed(self, request_id: str, inputs: Sequence[Prompt], dimensions: int) -> Sequence[Sequence[float]]:
        """There are none."""
        raise BadRequest("the llama_cpp engine makes no embeddings")

    async def count_prompt(self, path: str, body: dict[str, Any]) -> Sequence[int]:
        """Prompt tokens of each prompt in an OpenAI body."""
        if path == "/v1/embeddings":
            raise BadRequest("the llama_cpp engine makes no embeddings", "model")
        return [len(prompt.token_ids) for prompt in await prompts_of(self, path, body)]

    def asgi_app(self) -> ASGIApp:
        """The engine's OpenAI-compatible application."""
        if self._app is None:
            self._app = LlamaOpenAI(self)
        return self._app

    def stats(self) -> EngineStats:
        """Counters since the warm-up, and gauges as of the last step."""
        worker = self._worker
        if worker is None:
            return EngineStats()
        stats, scheduler = worker.stats, worker.scheduler
        stats.running = len(scheduler.running)
        stats.waiting = scheduler.waiting_live
        stats.kv_usage = min(scheduler.used / scheduler.limits.cells, 1.0)
        stats.preemptions = scheduler.preemptions
        return stats

    async def check(self) -> None:
        """Raise EngineError(fatal=True) when the decoding thread is dead."""
        worker = self._worker
        if worker is None:
            raise EngineError("the engine is not running", fatal=True)
        if not worker.alive:
            raise EngineError(worker.died or "the decoding thread has ended", fatal=True)

    def follow(self, finished: Callable[[Finished], None]) -> None:
        """Tell of each sequence that ends by itself."""
        self._finished = finished

    def _deliver(self, news: News) -> None:
        for request, delta in news.deltas:
            request.ready.append(delta)
            if request.notify is not None:
                request.notify()
        for request, error in news.failures:
            _fail(request, error)
        if self._finished is not None:
            for ended in news.finished:
                self._finished(ended)

    def _fail(self, error: EngineError) -> None:
        for request in list(self._requests):
            _fail(request, error)

    def _loaded(self) -> Model:
        if self._model is None:
            raise EngineError("the engine is not running")
        return self._model

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def _fail(request: LlamaRequest, error: EngineError) -> None:
    if request.failed is None:
        request.failed = error
        if request.notify is not None:
            request.notify()


async def _until_ready(request: LlamaRequest) -> None:
    """Wait until something is delivered. What bounds the wait is the caller's deadline, and ``stop``."""
    if request.ready or request.failed is not None:
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    request.notify = lambda: None if future.done() else future.set_result(None)
    try:
        await future
    finally:
        request.notify = None
