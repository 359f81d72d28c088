"""Which streams can go on elsewhere, and what of a tunnelled one has been handed on.

The node decides, because it parses the request; the router asks with ``laya-journal: 1`` and is answered in the same
name. Of an OpenAI body only fields that are known to be replayed exactly are let pass: what is not known is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from inference_node import bodies
from inference_node.call import Call
from inference_node.engines.base import Engine, Sampling

Part = tuple[Sequence[int], str]

# Fields that shape the answer by the prompt or by the tokens alone: replayed, they shape it in the same way.
_PLAIN: Final = frozenset((
    "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "user",
    "priority", "cache_salt", "stop", "skip_special_tokens", "spaces_between_special_tokens", "echo",
    "add_generation_prompt", "continue_final_message", "metadata", "add_special_tokens", "chat_template",
    "chat_template_kwargs", "documents", "truncate_prompt_tokens", "tools", "tool_choice", "parallel_tool_calls",
    "reasoning_effort", "include_reasoning", "return_token_ids", "return_tokens_as_token_ids", "request_id", "store",
    "service_tier", "safety_identifier", "prompt_cache_key", "suffix",
))  # fmt: skip
_FORMS: Final = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
)  # fmt: skip
# Fields of the same name in Sampling: the engine says.
_SAMPLED: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "min_tokens", "bad_words", "logit_bias", "allowed_token_ids", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output",
)  # fmt: skip
_KNOWN: Final = _PLAIN | frozenset(_FORMS) | frozenset(_SAMPLED) | {
    "n", "best_of", "use_beam_search", "response_format", "logprobs", "top_logprobs", "prompt_logprobs",
}  # fmt: skip
_TEXTS: Final = frozenset(("text", "input_text", "output_text", "refusal"))
_FREE: Final = ("auto", "none")


def answer(why: str) -> bytes:
    """The metadata's value: granted, or why not."""
    return b"0; " + why.encode("ascii", "replace") if why else b"1"


def typed_refusal(sampling: Sampling, call: Call, engine: Engine) -> str:
    """Why a typed stream cannot go on elsewhere, empty where it can."""
    if call.no_migrate:
        return "the client asked for that"
    if sampling.n > 1:
        return "n is over 1"
    forms = (sampling.json_schema, sampling.json_object, sampling.regex, sampling.grammar, sampling.choice)
    if any(form is not None and form is not False for form in forms):
        return "structured output"
    if sampling.prompt_logprobs is not None:
        return "log-probabilities of the prompt"
    return engine.cannot_continue(sampling)


def tunnel_refusal(plan: bodies.Plan, prompts: int, call: Call, engine: Engine) -> str:
    """Why a tunnelled answer cannot go on elsewhere, empty where it can."""
    body = {name: value for name, value in plan.body.items() if value is not None}
    if plan.path not in (bodies.CHAT, bodies.COMPLETIONS):
        return "this path is not replayed"
    if body.get("stream") is not True:
        return "the answer is no stream"
    if prompts > 1:
        return "several prompts"
    if plan.sequences > 1:
        return "n is over 1"
    if body.get("use_beam_search"):
        return "beam search"
    if _structured(body):
        return "structured output"
    if any(body.get(name, False) is not False for name in ("logprobs", "top_logprobs", "prompt_logprobs")):
        return "log-probabilities over HTTP"
    if not _text_alone(body.get("messages")):
        return "input that is not text"
    for name in body:
        if name not in _KNOWN:
            return f"the field {name[:64]}"
    return typed_refusal(_sampling(body), call, engine)


def _structured(body: Mapping[str, Any]) -> bool:
    form = body.get("response_format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        return True
    if any(body.get(name) for name in _FORMS):
        return True
    tools = body.get("tools")
    if not tools:
        return False
    if body.get("tool_choice", "auto") not in _FREE:
        return True
    return not isinstance(tools, list) or any(_strict(tool) for tool in tools)


def _strict(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return not isinstance(function, dict) or bool(function.get("strict"))


def _text_alone(messages: Any) -> bool:
    for message in messages or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(
            not isinstance(part, dict) or part.get("type") not in _TEXTS for part in content
        ):
            return False
    return True


def _sampling(body: Mapping[str, Any]) -> Sampling:
    """The parameters an engine is asked about; values are the client's, and nothing is computed with them."""
    out = Sampling(max_tokens=1)
    for name in _SAMPLED:
        if name in body:
            setattr(out, name, body[name])
    return out


class Handed:
    """Tokens that the application has taken and no message has told of yet, as it took them."""

    __slots__ = ("dead", "parts", "pinned")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.dead = False
        self.pinned = ""

    def tell(self, token_ids: Sequence[int], finish_reason: str) -> None:
        """The application takes these together."""
        if token_ids or finish_reason:
            self.parts.append((token_ids, finish_reason))

    def pin(self, why: str) -> None:
        """The answer can not go on elsewhere after all."""
        self.pinned = why

    def died(self) -> None:
        """The engine is dead: the node goes with it, and the answer may go on elsewhere."""
        self.dead = True

    def take(self) -> list[Part]:
        """Those that no message has told of."""
        parts = self.parts
        if parts:
            self.parts = []
        return parts
