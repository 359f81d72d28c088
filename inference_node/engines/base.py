"""The seam between a node and what runs its model.

A node owns one ``Engine``. It calls ``start`` once, then ``generate``, ``embed``, ``count_prompt`` and the ASGI
application as requests come, ``stats`` for every report, and ``stop`` once. Memory is not the engine's business:
admission holds KV blocks before any of these calls is made, so an engine never has to refuse for lack of room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference_node.memory.sequence import BlockGroup

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class EngineError(Exception):
    """The engine failed; ``fatal`` when it cannot serve any more and the node must exit."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class EngineUnavailable(Exception):
    """The engine is not installed or cannot run here: one sentence with what to install."""


class BadRequest(ValueError):
    """The engine cannot take this request; the message is for the client. ``param`` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What ``start`` found. Token counts are tokens of one sequence unless said otherwise."""

    engine: str
    model: str
    revision: str
    max_seq_len: int
    quantization: str
    kv_block_tokens: int  # tokens of a KV block; with ``kv_groups``, what a block counts for in tokens
    kv_blocks: int  # blocks that requests can use: vLLM's null block is already taken off
    max_num_seqs: int
    max_prefill_tokens: int  # prompt tokens the scheduler takes per step
    lookahead_tokens: int = 0  # speculative tokens that a running sequence may need beside its own
    supports_embed: bool = False
    supports_chat: bool = True
    kv_groups: tuple[BlockGroup, ...] = ()  # blocks that a sequence takes; empty: its tokens in whole blocks
    tells_evictions: bool = False  # ``follow_cache`` will be heard of

    @property
    def kv_capacity_tokens(self) -> int:
        """KV capacity in tokens."""
        return self.kv_blocks * self.kv_block_tokens


@dataclass(slots=True)
class Sampling:
    """Sampling parameters after validation and defaults; None means the model's own default."""

    max_tokens: int
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    # At most one of these: a JSON schema (text), any JSON object, a regular expression, a grammar, choices.
    json_schema: str | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn."""

    role: str
    content: str
    name: str = ""
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as token ids, ready for ``generate``; ``text`` is kept where it was text."""

    token_ids: Sequence[int]
    text: str | None = None


class Inexact(Exception):
    """A stream that another node began cannot go on here as it would have there: one sentence."""


@dataclass(slots=True)
class Past:
    """What the client has of a stream that another node began.

    ``parts`` are token ids as the other engine handed them over, each part at once and none empty. ``finish_reason``
    is the engine's word where these are all there will be. ``inexact`` says why the stream cannot go on here, once
    that is known: an application may hide the exception.
    """

    parts: Sequence[Sequence[int]]
    finish_reason: str = ""
    inexact: str = ""

    @property
    def tokens(self) -> list[int]:
        """All token ids, in order."""
        return [token for part in self.parts for token in part]

    def fail(self, why: str) -> Inexact:
        """The exception to raise, remembered."""
        self.inexact = why
        return Inexact(why)


@dataclass(slots=True)
class GenerateCall:
    """One admitted request. ``request_id`` is unique among the node's running requests."""

    request_id: str
    prompt: Prompt
    sampling: Sampling
    priority: int = 0
    cache_salt: str = ""
    lora: str = ""
    dispatch: str = ""  # the router's id of it, empty for none
    past: Past | None = None  # the client has a part already: ``sampling`` is of the whole, ``max_tokens`` too


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token with its natural-log probability; rank 1 is the likeliest."""

    token_id: int
    token: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Position:
    """Log-probabilities at one position: the chosen token and the likeliest others, best first."""

    chosen: Logprob
    top: Sequence[Logprob] = ()


@dataclass(slots=True)
class Delta:
    """What is new in one completion since the last delta."""

    index: int = 0
    text: str = ""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[Position] = ()
    finish_reason: str = ""  # "", "stop", "length", "abort", "error"
    stop_reason: str = ""
    # Known from the first delta on.
    cached_tokens: int = 0
    prompt_logprobs: Sequence[Position] = ()
    replayed: bool = False  # part of the call's ``past``, with the text it had then


@dataclass(frozen=True, slots=True)
class Finished:
    """A sequence that ended by itself, by a stop or by its length; one that was cut off says nothing of lengths."""

    prompt_tokens: int
    max_new_tokens: int
    new_tokens: int


@dataclass(slots=True)
class EngineStats:
    """Counters and gauges of the engine, read for each report. Counters only grow."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # 0 to 1, the engine's own gauge
    preemptions: int = 0
    prompt_tokens: int = 0  # prefilled, cached ones left out
    generation_tokens: int = 0
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hits: int = 0  # of those, found
    prefill_seconds: float = 0.0  # time spent in steps that prefilled
    decode_seconds: float = 0.0  # time spent in steps that decoded
    extra: dict[str, float] = field(default_factory=dict)


class Engine(ABC):
    """What runs the model. All methods are called on the node's event loop."""

    name: str = ""

    @abstractmethod
    async def start(self) -> EngineInfo:
        """Load the model and warm it up; called once, before the node is READY.

        Raises EngineUnavailable when it cannot run here and EngineError when loading fails. Warm-up covers each kind
        of request (plain, logprobs, structured output, chat) so that no client pays for a first compilation.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Release everything; called once, also after a failed start. Never raises."""

    @abstractmethod
    async def tokenize(self, text: str) -> Sequence[int]:
        """Token ids of a text prompt, special tokens included as the model wants them."""

    @abstractmethod
    async def render_chat(self, messages: Sequence[Message], template_kwargs: dict[str, Any]) -> Prompt:
        """Render a conversation with the model's chat template. Raises BadRequest when it has none or refuses."""

    @abstractmethod
    def generate(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        """Run one admitted request and yield what is new, step by step.

        Closing the generator aborts the request in the engine within one step: callers use ``aclosing``. Raises
        BadRequest before the first delta for parameters the engine refuses, EngineError when it breaks.

        A call with a ``past`` first yields a delta for each of its parts, as it was then but for log-probabilities and
        ``cached_tokens`` (which are this engine's, of the prompt), and then what is new; where the past holds the end,
        its last delta says so. Raises Inexact before the first delta where the past cannot be what this engine says.
        """

    def cannot_continue(self, sampling: Sampling) -> str:
        """Why a stream with these parameters cannot go on exactly where another engine like this one left it.

        A few words for the client, empty where it can: then ``generate`` takes a ``past``, in the application too.
        """
        return f"engine {self.name} takes up no stream"

    @abstractmethod
    async def embed(self, request_id: str, inputs: Sequence[Prompt], dimensions: int) -> Sequence[Sequence[float]]:
        """One vector per input. Raises BadRequest when the model has no embeddings."""

    @abstractmethod
    async def count_prompt(self, path: str, body: dict[str, Any]) -> Sequence[int]:
        """Prompt tokens of each prompt in an OpenAI request body, as its application will count them.

        Called once per tunnelled or HTTP request, before admission; ``path`` is "/v1/chat/completions",
        "/v1/completions" or "/v1/embeddings". Raises BadRequest for a body the application would refuse.
        """

    @abstractmethod
    def asgi_app(self) -> ASGIApp:
        """The engine's own OpenAI-compatible application; called with requests that are already admitted."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Current counters and gauges; cheap, called up to 20 times a second."""

    @abstractmethod
    async def check(self) -> None:
        """Raise EngineError(fatal=True) if the engine is dead; called about once a second."""

    def follow(self, finished: Callable[[Finished], None]) -> None:
        """Call ``finished`` for each sequence that ends by itself, whoever asked for it; called at most once.

        Over-commit learns from it. An engine that never calls it leaves every hold at its full size.
        """
        return None

    def follow_cache(self, evicted: Callable[[str, int], None]) -> None:
        """Call ``evicted(dispatch, kept_tokens)`` when the prefix cache loses a part of what a request has put there.

        Called at most once, after ``start``, if ``EngineInfo.tells_evictions``. ``dispatch`` is the request's own
        (``GenerateCall.dispatch``, or the context's in the application), ``kept_tokens`` what is left of its prompt.
        """
        return None

    def metrics_text(self) -> str:
        """The engine's own Prometheus exposition, appended to the node's; empty if it has none."""
        return ""
