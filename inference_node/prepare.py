"""From a typed request to what admission and engine need: validated, defaults filled, clamps applied.

Every refusal here names the field. Nothing is held yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from inference_node import convert, resume
from inference_node import sampling as checks
from inference_node.admission import Need
from inference_node.call import Call
from inference_node.engines.base import BadRequest, Engine, EngineInfo, GenerateCall, Message, Prompt, Sampling
from inference_node.resume import Resumed
from inference_node.state import NodeState
from shared.config.schema import Config
from shared.errors import Code, LayaError, invalid
from shared.pb.laya.v1 import inference_pb2 as pb

MAX_INPUTS = 256
MAX_MESSAGES = 4096
CHARACTERS_PER_TOKEN = 256  # no tokenizer's tokens are longer; a longer prompt is refused without tokenizing it


@dataclass(frozen=True, slots=True)
class Job:
    """A request ready to be admitted and run."""

    call: Call
    generate: GenerateCall
    need: Need
    model: str
    resumed: Resumed | None = None


@dataclass(frozen=True, slots=True)
class Caps:
    """What no request may exceed here."""

    max_n: int
    max_max_tokens: int
    streaming: bool = True

    @staticmethod
    def of(config: Config, call: Call) -> Caps:
        """The router's caps where it sends some (its configuration may be another file), else this node's own."""
        clamps, router = call.clamps, config.router
        streaming = config.inference.enable_streaming
        return Caps(clamps.max_n or router.max_n, clamps.max_max_tokens or router.max_max_tokens, streaming)


class Preparer:
    """Turns requests into jobs; one per node."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._config = state.config
        self._numbers = itertools.count(1)

    async def generate(self, request: pb.GenerateRequest, call: Call) -> Job:
        """A Generate or Complete request. Raises LayaError."""
        serving = self._state.serving
        model = self._state.check_model(call.rewrite or request.model)
        engine, info = serving.engine, serving.info
        try:
            prompt = await self._prompt(request, engine, info)
            return self._job(prompt, request, call, info, model)
        except BadRequest as e:
            raise refused(e) from None

    async def chat(self, request: pb.ChatRequest, call: Call) -> Job:
        """A Chat request. Raises LayaError."""
        serving = self._state.serving
        model = self._state.check_model(call.rewrite or request.model)
        try:
            turns = _turns(request.messages)
            prompt = await serving.engine.render_chat(turns, _template_kwargs(request.template_kwargs_json))
            return self._job(prompt, request, call, serving.info, model)
        except BadRequest as e:
            raise refused(e) from None

    async def embed(self, request: pb.EmbedRequest, call: Call) -> tuple[list[Prompt], Need, str]:
        """The prompts of an Embed request, what they need, and the model's name. Raises LayaError."""
        serving = self._state.serving
        model = self._state.check_model(call.rewrite or request.model)
        if not serving.info.supports_embed:
            raise LayaError(Code.UNIMPLEMENTED, "INVALID_REQUEST", f"The model {model} makes no embeddings.")
        if not 1 <= len(request.inputs) <= MAX_INPUTS:
            raise invalid(f"inputs holds {len(request.inputs)} texts; it must hold 1 to {MAX_INPUTS}.", "inputs")
        prompts = []
        try:
            for i, text in enumerate(request.inputs):
                name = f"inputs[{i}]"
                _check_length(text, serving.info, name)
                tokens = await serving.engine.tokenize(text)
                if not tokens:
                    raise BadRequest(f"{name} is empty", name)
                prompts.append(Prompt(tokens, text))
        except BadRequest as e:
            raise refused(e) from None
        return prompts, Need([len(prompt.token_ids) for prompt in prompts], 0), model

    async def _prompt(self, request: pb.GenerateRequest, engine: Engine, info: EngineInfo) -> Prompt:
        kind = request.WhichOneof("prompt")
        if kind == "text":
            _check_length(request.text, info, "text")
            return Prompt(await engine.tokenize(request.text) if request.text else (), request.text)
        if kind == "token_ids":
            return Prompt(list(request.token_ids.ids))
        if kind == "messages":
            return await engine.render_chat(_turns(request.messages.messages), {})
        raise BadRequest("the request has no prompt; set text, token_ids or messages", "prompt")

    def _job(
        self, prompt: Prompt, request: pb.GenerateRequest | pb.ChatRequest, call: Call, info: EngineInfo, model: str
    ) -> Job:
        params = request.sampling
        tokens = _truncate(prompt.token_ids, params)
        if tokens is not prompt.token_ids:
            prompt = Prompt(tokens)
        if not tokens:
            raise BadRequest("the prompt is empty", "prompt")
        sampling = convert.sampling(params, request.structured if request.HasField("structured") else None, call.clamps)
        caps = Caps.of(self._config, call)
        sampling.max_tokens = self._max_tokens(convert.wanted_tokens(params, call.clamps), len(tokens), info, caps)
        checks.check(sampling, caps.max_n, "sampling.")
        resumed = resume.read(request, call)
        generate = self._call(prompt, sampling, request, call)
        if resumed is None:
            return Job(call, generate, Need((len(tokens),), sampling.max_tokens, sampling.n), model)
        generate.past = resumed.past
        return Job(call, generate, resumed_need(len(tokens), sampling.max_tokens, resumed), model, resumed)

    def _call(
        self, prompt: Prompt, sampling: Sampling, request: pb.GenerateRequest | pb.ChatRequest, call: Call
    ) -> GenerateCall:
        # A client may send one request id twice at a time; the engine must not see it twice.
        return GenerateCall(
            f"{call.request_id}.{next(self._numbers):x}",
            prompt,
            sampling,
            call.priority_over(request.priority),
            call.salt_over(request.cache_salt),
            dispatch=call.dispatch,
        )

    def _max_tokens(self, wanted: int | None, prompt: int, info: EngineInfo, caps: Caps) -> int:
        if wanted is None:
            # The default never makes a request too long that fits without it.
            return max(1, min(self._config.inference.default_max_tokens, info.max_seq_len - prompt))
        checks.check_max_tokens(wanted, caps.max_max_tokens, "sampling.max_tokens")
        return wanted


def resumed_need(prompt: int, max_tokens: int, resumed: Resumed) -> Need:
    """What is still to come needs: what the client has is a part of the prompt. Raises INVALID_ARGUMENT."""
    rest = resume.left(max_tokens, resumed)
    # Nothing runs where nothing is left to generate.
    return Need((prompt + resumed.delivered,), rest) if rest else Need((1,), 0)


def _turns(turns: Sequence[pb.ChatMessage]) -> list[Message]:
    if not 1 <= len(turns) <= MAX_MESSAGES:
        raise BadRequest(f"messages holds {len(turns)} turns; it must hold 1 to {MAX_MESSAGES}", "messages")
    return convert.messages(turns)


def _template_kwargs(raw: str) -> dict[str, object]:
    if not raw:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except msgspec.DecodeError as e:
        raise BadRequest(f"template_kwargs_json is not a JSON object: {e}", "template_kwargs_json") from None


def _truncate(tokens: Sequence[int], params: pb.SamplingParams) -> Sequence[int]:
    if not params.HasField("truncate_prompt_tokens"):
        return tokens
    keep = params.truncate_prompt_tokens
    if keep < 1:
        raise BadRequest(
            "sampling.truncate_prompt_tokens is 0; it must be 1 or more", "sampling.truncate_prompt_tokens"
        )
    return tokens[-keep:] if len(tokens) > keep else tokens


def _check_length(text: str, info: EngineInfo, name: str) -> None:
    if len(text) > info.max_seq_len * CHARACTERS_PER_TOKEN:
        raise invalid(
            f"{name} has {len(text)} characters, far more than the context of {info.max_seq_len} tokens holds.",
            name,
            "CONTEXT_TOO_LONG",
        )


def refused(error: BadRequest) -> LayaError:
    """INVALID_ARGUMENT for what an engine or a check says of a request."""
    text = str(error)
    return invalid(text if text.endswith((".", "!", "?")) else f"{text}.", error.param)
