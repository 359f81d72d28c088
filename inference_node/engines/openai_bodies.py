"""The JSON bodies that an OpenAI application of our own takes, and what they mean to its engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from inference_node.engines.base import BadRequest, Delta, EngineInfo, GenerateCall, Message, Prompt, Sampling

MAX_PROMPTS = 256


class LocalEngine(Protocol):
    """What an application of our own needs of its engine."""

    name: str

    @property
    def info(self) -> EngineInfo:
        """What ``start`` returned."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model, its own first."""

    @property
    def default_max_tokens(self) -> int:
        """New tokens for a request that names none."""

    async def tokenize(self, text: str) -> Sequence[int]:
        """Token ids of a text prompt."""

    async def render_chat(self, messages: Sequence[Message], template_kwargs: dict[str, Any]) -> Prompt:
        """A conversation as a prompt."""

    def generate(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        """Run a request."""

    async def embed(self, request_id: str, inputs: Sequence[Prompt], dimensions: int) -> Sequence[Sequence[float]]:
        """One vector per input."""

    def check_call(self, call: GenerateCall) -> None:
        """Raise BadRequest for what the engine cannot do for this call."""

    def is_token(self, token: int) -> bool:
        """Whether the vocabulary has it."""

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special ones included."""


class StreamOptions(msgspec.Struct):
    """``stream_options`` of a body."""

    include_usage: bool = False


class ResponseFormat(msgspec.Struct):
    """``response_format`` of a body."""

    type: str = "text"
    json_schema: Any = None  # OpenAI's object with the schema in it


class Structured(msgspec.Struct):
    """``structured_outputs`` of a body, as vLLM names it."""

    choice: list[str] | None = None
    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None


class CommonBody(msgspec.Struct, kw_only=True):
    """What chat and completion bodies share. Unknown keys are ignored, as OpenAI clients send many."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Structured | None = None
    use_beam_search: bool = False
    priority: int = 0
    cache_salt: str | None = None


class ContentPart(msgspec.Struct):
    """A part of a chat turn's content; only text can be taken."""

    type: str
    text: str = ""


class ChatTurn(msgspec.Struct):
    """One message of a chat body."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None


class ChatBody(CommonBody, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[ChatTurn]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(CommonBody, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool = False
    suffix: str | None = None


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """Body of /v1/embeddings."""

    model: str | None = None
    input: str | list[str | int | list[int]]
    dimensions: int | None = None
    encoding_format: str = "float"


B = TypeVar("B")


def convert(body: dict[str, Any], kind: type[B]) -> B:
    """The body as a struct. Raises BadRequest that names the field."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as e:
        text, _, at = str(e).partition(" - at `$")
        path = at.rstrip("`").lstrip(".")
        raise BadRequest(f"{path}: {text[0].lower()}{text[1:]}" if path else text, path or None) from None


async def chat_prompt(engine: LocalEngine, body: ChatBody) -> Prompt:
    """The rendered conversation."""
    if not body.messages:
        raise BadRequest("messages is empty; a conversation needs one message at least", "messages")
    turns = []
    for i, turn in enumerate(body.messages):
        content = turn.content
        if isinstance(content, list):
            for part in content:
                if part.type not in ("text", "input_text"):
                    raise BadRequest(
                        f"the {engine.name} engine reads text alone, not {part.type!r}", f"messages[{i}].content"
                    )
            content = "\n".join(part.text for part in content)
        turns.append(Message(turn.role, content or "", turn.name or "", turn.tool_call_id or ""))
    return await engine.render_chat(turns, body.chat_template_kwargs or {})


async def text_prompts(engine: LocalEngine, value: str | list[str | int | list[int]], param: str) -> list[Prompt]:
    """One prompt per text or list of token ids. Raises BadRequest for an empty or mixed list."""
    if isinstance(value, str):
        items: list[str | list[int]] = [value]
    elif value and all(isinstance(item, int) for item in value):
        items = [[item for item in value if isinstance(item, int)]]
    else:
        items = [item for item in value if not isinstance(item, int)]
        if len(items) != len(value):
            raise BadRequest(f"{param} mixes token ids with texts", param)
    if not 1 <= len(items) <= MAX_PROMPTS:
        raise BadRequest(f"{param} holds {len(items)} prompts; 1 to {MAX_PROMPTS} are allowed", param)
    prompts = []
    for item in items:
        ids = await engine.tokenize(item) if isinstance(item, str) else item
        if not ids:
            raise BadRequest(f"{param} is empty", param)
        for token in ids:
            if not engine.is_token(token):
                raise BadRequest(f"{param} holds token id {token}, which is not in the vocabulary", param)
        prompts.append(Prompt(ids, item if isinstance(item, str) else None))
    return prompts


def sampling_of(body: CommonBody, max_tokens: int, logprobs: int | None) -> Sampling:
    """The sampling parameters of a body. Raises BadRequest for what makes no sense; the engine refuses the rest."""
    if body.use_beam_search:
        raise BadRequest("there is no beam search here", "use_beam_search")
    form = body.structured_outputs or Structured()
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    out = Sampling(
        max_tokens=max_tokens,
        n=1 if body.n is None else body.n,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop=stop,
        stop_token_ids=body.stop_token_ids or (),
        include_stop_str_in_output=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        logprobs=logprobs,
        logit_bias=_biases(body.logit_bias),
        allowed_token_ids=body.allowed_token_ids,
        bad_words=body.bad_words or (),
        skip_special_tokens=body.skip_special_tokens,
        choice=form.choice,
        json_schema=None if form.json is None else _schema(form.json, "structured_outputs"),
        json_object=bool(form.json_object),
        regex=form.regex,
        grammar=form.grammar,
    )
    _format(body.response_format, out)
    return out


def _biases(biases: dict[str, float] | None) -> dict[int, float] | None:
    if not biases:
        return None
    try:
        return {int(token): bias for token, bias in biases.items()}
    except ValueError:
        raise BadRequest("logit_bias must have token ids as its keys", "logit_bias") from None


def _format(form: ResponseFormat | None, out: Sampling) -> None:
    if form is None or form.type == "text":
        return
    if form.type == "json_object":
        out.json_object = True
    elif form.type == "json_schema":
        schema = form.json_schema.get("schema") if isinstance(form.json_schema, dict) else None
        if schema is None:
            raise BadRequest("response_format.json_schema must hold a schema", "response_format")
        out.json_schema = _schema(schema, "response_format")
    else:
        raise BadRequest(
            f"response_format.type is {form.type!r}; it can be text, json_object or json_schema", "response_format"
        )


def _schema(value: Any, param: str) -> str:
    """A JSON schema as text, whether it was given as text or as an object."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | bool):
        raise BadRequest(f"{param}: a JSON schema is an object or its text", param)
    return msgspec.json.encode(value).decode()
