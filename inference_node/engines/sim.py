"""The simulator: an engine without a model that behaves like one.

It batches continuously over paged KV with a prefix cache, takes the time its cost model says, and answers with text
that is a known function of prompt and seed (``sim_text``). It says that it is a simulator wherever it answers. Of the
sampling parameters it honours those that decide how much is generated and how it is cut (max_tokens, min_tokens, n,
seed, stop, stop_token_ids, ignore_eos, logprobs, choice); those that only shape the odds change nothing; those that
would promise something about the text (logit_bias, a grammar, a JSON schema, …) it refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from inference_node.config import model_name, model_names
from inference_node.engines import sim_text
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
from inference_node.engines.sim_kv import BlockPool
from inference_node.engines.sim_scheduler import Costs, Scheduler
from inference_node.engines.sim_sequence import SimRequest
from inference_node.limits import long_prefill_threshold
from shared.config.schema import ConfigError, InferenceConfig

MAX_CONTEXT = 131_072
DEFAULT_CONTEXT = 32_768
DEFAULT_NUM_SEQS = 256
DEFAULT_STEP_TOKENS = 2048
DIMENSIONS = 64
MAX_LAG = 0.1  # seconds a late wake-up may be made up for

_ROLES = {
    "system": sim_text.SYSTEM,
    "developer": sim_text.SYSTEM,
    "user": sim_text.USER,
    "assistant": sim_text.ASSISTANT,
    "tool": sim_text.TOOL,
}
_REFUSED = ("json_schema", "json_object", "regex", "grammar", "logit_bias", "allowed_token_ids", "bad_words")


class SimEngine(Engine):
    """See the module's docstring."""

    name = "sim"

    def __init__(self, config: InferenceConfig) -> None:
        """Raises ConfigError for settings that the simulator cannot honour."""
        self._config = config
        self._seed = config.sim.seed
        self._info = _info(config)
        self._scheduler = Scheduler(
            Costs(
                config.sim.prefill_tokens_per_second,
                config.sim.decode_base_ms / 1e3,
                config.sim.decode_per_sequence_ms / 1e3,
                self._info.max_prefill_tokens,
                self._info.max_num_seqs,
                long_prefill_threshold(config.long_prompt_tokens, self._info.max_prefill_tokens),
            ),
            BlockPool(self._info.kv_blocks, config.sim.prefix_cache),
            config.sim.block_tokens,
        )
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._requests: dict[SimRequest, None] = {}
        self._app: ASGIApp | None = None

    @property
    def info(self) -> EngineInfo:
        """What ``start`` returns."""
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
        """Start the scheduling loop; all there is to warm up is the application's code."""
        self.asgi_app()
        self._loop_task = asyncio.create_task(self._run(), name="sim-scheduler")
        return self._info

    async def stop(self) -> None:
        """Stop the loop and fail what is still running."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        self._fail(EngineError("the engine was stopped", fatal=True))

    async def tokenize(self, text: str) -> Sequence[int]:
        """Token ids of a text. Raises BadRequest for one that cannot fit, so that it holds nobody up."""
        self._check_size(len(text))
        return encode(text)

    def _check_size(self, characters: int) -> None:
        most = self._info.max_seq_len
        if characters > most * sim_text.LONGEST_TOKEN:
            raise BadRequest(
                f"the prompt has {characters} characters, more than a context of {most} tokens can hold", "prompt"
            )

    def is_token(self, token: int) -> bool:
        """Whether the vocabulary has it."""
        return sim_text.is_token(token)

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of token ids, marks included."""
        return sim_text.decode(tokens, True)

    async def render_chat(self, messages: Sequence[Message], template_kwargs: dict[str, Any]) -> Prompt:
        """Each turn as its role's mark, its text, and an end mark; then the assistant's mark."""
        tokens: list[int] = []
        self._check_size(sum(len(message.content) for message in messages))
        for i, message in enumerate(messages):
            mark = _ROLES.get(message.role)
            if mark is None:
                roles = ", ".join(sorted(_ROLES))
                raise BadRequest(f"messages[{i}].role is {message.role!r}; it can be {roles}", f"messages[{i}].role")
            tokens.append(mark)
            tokens += encode(message.content)
            tokens.append(sim_text.END)
        if template_kwargs.get("add_generation_prompt", True):
            tokens.append(sim_text.ASSISTANT)
        return Prompt(tokens, sim_text.decode(tokens, True))

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        """Run one request; closing the generator frees its blocks at once."""
        self.check_call(call)
        request = SimRequest(call, self._seed, self._info.max_seq_len)
        loop = asyncio.get_running_loop()
        listener = pulled.get()
        told = False
        if request.live == 0:
            for delta in request.replayed:
                yield delta
            return
        self._submit(request)
        try:
            while True:
                if not request.ready:
                    await _until_ready(request, loop)
                if request.failed is not None:
                    if listener is not None:
                        listener.died()
                    raise request.failed
                ready, request.ready = request.ready, []
                if not told:
                    told = True
                    cached = max(ready[0].cached, 0) if ready else 0
                    signal_first_token(cached)
                    for delta in request.replayed:
                        delta.cached_tokens = cached
                        yield delta
                for sequence in ready:
                    delta = sequence.delta()
                    if listener is not None:
                        listener.tell(delta.token_ids, delta.finish_reason)
                    yield delta
                if request.live == 0 and not request.ready:
                    return
        finally:
            self._scheduler.abort(request)
            self._requests.pop(request, None)

    def cannot_continue(self, sampling: Sampling) -> str:
        """Its text is a function of prompt, seed and position, so it goes on anywhere; penalties change nothing."""
        return ""

    async def embed(self, request_id: str, inputs: Sequence[Prompt], dimensions: int) -> Sequence[Sequence[float]]:
        """Unit vectors of hashed token counts: equal texts have equal vectors, similar texts similar ones."""
        size = dimensions or DIMENSIONS
        if not 1 <= size <= DIMENSIONS:
            raise BadRequest(f"dimensions is {dimensions}; the sim engine has 1 to {DIMENSIONS}", "dimensions")
        for i, prompt in enumerate(inputs):
            call = GenerateCall(f"{request_id}-{i}", prompt, Sampling(max_tokens=0))
            async with contextlib.aclosing(self.generate(call)) as deltas:
                async for _ in deltas:
                    pass
        return [_vector(prompt.token_ids, size) for prompt in inputs]

    async def count_prompt(self, path: str, body: dict[str, Any]) -> Sequence[int]:
        """Prompt tokens of each prompt in an OpenAI body."""
        from inference_node.engines.openai_app import prompts_of

        return [len(prompt.token_ids) for prompt in await prompts_of(self, path, body)]

    def asgi_app(self) -> ASGIApp:
        """The simulator's OpenAI-compatible application."""
        if self._app is None:
            from inference_node.engines.sim_openai import SimOpenAI

            self._app = SimOpenAI(self)
        return self._app

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        return self._scheduler.snapshot()

    async def check(self) -> None:
        """Raise if the scheduling loop has died."""
        if self._loop_task is None or self._loop_task.done():
            raise EngineError("the simulator's scheduling loop has ended", fatal=True)

    def follow(self, finished: Callable[[Finished], None]) -> None:
        """Tell of each sequence that ends by itself."""
        self._scheduler.on_finished = finished

    def check_call(self, call: GenerateCall) -> None:
        """Raise BadRequest for what the simulator cannot do for this call."""
        sampling = call.sampling
        for name in _REFUSED:
            if getattr(sampling, name):
                raise BadRequest(f"the sim engine generates canned text and cannot apply {name}", name)
        if call.lora:
            raise BadRequest("the sim engine has no adapters", "lora")
        tokens = call.prompt.token_ids
        if not tokens:
            raise BadRequest("the prompt is empty", "prompt")
        for token in tokens:
            if not sim_text.is_token(token):
                raise BadRequest(f"token id {token} is not in the vocabulary", "prompt")
        if len(tokens) + min(sampling.max_tokens, 1) > self._info.max_seq_len:
            raise BadRequest(
                f"the prompt has {len(tokens)} tokens, the context has {self._info.max_seq_len} for prompt and answer",
                "prompt",
            )

    def _submit(self, request: SimRequest) -> None:
        if self._loop_task is None or self._loop_task.done():
            raise EngineError("the simulator is not running", fatal=True)
        self._requests[request] = None
        self._scheduler.add(request)
        self._wake.set()

    async def _run(self) -> None:
        """Step after step at the times the cost model gives; a late timer does not slow the simulated machine."""
        clock = time.monotonic  # an event loop's own may tick in milliseconds
        scheduler = self._scheduler
        due = clock()  # when the step in progress ends
        try:
            while True:
                if not scheduler.has_work:
                    self._wake.clear()
                    await self._wake.wait()
                    due = clock()
                step = scheduler.plan()
                due = max(due, clock() - MAX_LAG) + step.seconds
                if not step.work:
                    raise RuntimeError("there is work and none of it can be scheduled")
                await asyncio.sleep(max(0.0, due - clock()))
                for request in scheduler.finish(step):
                    if request.notify is not None:
                        request.notify()
        except Exception as e:
            self._fail(EngineError(f"the simulator failed: {e!r}", fatal=True))
            raise

    def _fail(self, error: EngineError) -> None:
        for request in list(self._requests):
            request.failed = error
            if request.notify is not None:
                request.notify()


async def _until_ready(request: SimRequest, loop: asyncio.AbstractEventLoop) -> None:
    future: asyncio.Future[None] = loop.create_future()

    def notify() -> None:
        if not future.done():
            future.set_result(None)

    if request.failed is not None:
        return
    request.notify = notify
    try:
        await future
    finally:
        request.notify = None


def encode(text: str) -> list[int]:
    """Token ids of a text. Raises BadRequest for text that is no Unicode."""
    try:
        return sim_text.encode(text)
    except UnicodeEncodeError:
        raise BadRequest("the text holds half of a surrogate pair, which is no character", "prompt") from None


def _vector(tokens: Sequence[int], size: int) -> list[float]:
    values = [0.0] * size
    for token, count in Counter(tokens).items():
        key = sim_text.stream_key((token,), 0, 0)
        values[key % size] += count if key >> 63 else -count
    norm = math.sqrt(sum(v * v for v in values)) or 1.0
    return [v / norm for v in values]


def _info(config: InferenceConfig) -> EngineInfo:
    sim = config.sim
    blocks = sim.kv_tokens // sim.block_tokens
    limit = min(MAX_CONTEXT, blocks * sim.block_tokens)
    if config.max_seq_len > limit:
        raise ConfigError(
            f"inference.max_seq_len: {config.max_seq_len} is more than the {limit} tokens that the simulator supports; "
            f"set {limit} or less, or raise inference.sim.kv_tokens (at most {MAX_CONTEXT} are of use)"
        )
    step_tokens = DEFAULT_STEP_TOKENS
    for name, value in config.engine_args.items():
        if name != "max_num_batched_tokens":
            raise ConfigError(f"inference.engine_args.{name}: the sim engine takes max_num_batched_tokens alone")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"inference.engine_args.{name}: must be a whole number of 1 or more, not {value!r}")
        step_tokens = value
    return EngineInfo(
        engine="sim",
        model=model_name(config),
        revision=config.revision,
        max_seq_len=config.max_seq_len or min(DEFAULT_CONTEXT, limit),
        quantization=config.quantization,
        kv_block_tokens=sim.block_tokens,
        kv_blocks=blocks,
        max_num_seqs=config.max_num_seqs or DEFAULT_NUM_SEQS,
        max_prefill_tokens=step_tokens,
        supports_embed=True,
    )
