"""Between protocol messages and the engine's own types. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from inference_node.clamps import Clamps
from inference_node.engines.base import Delta, Logprob, Message, Position, Sampling
from shared.pb.laya.v1 import inference_pb2 as pb

FINISH: dict[str, pb.FinishReason] = {
    "": pb.FINISH_REASON_UNSPECIFIED,
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
    "error": pb.FINISH_REASON_ERROR,
}

_OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logprobs",
)


def wanted_tokens(params: pb.SamplingParams, clamps: Clamps) -> int | None:
    """New tokens asked for, after the router's clamps; None when nobody says."""
    value = clamps.apply("max_tokens", params.max_tokens if params.HasField("max_tokens") else None)
    return None if value is None else int(value)


def sampling(params: pb.SamplingParams, structured: pb.StructuredOutput | None, clamps: Clamps) -> Sampling:
    """Sampling parameters after the router's clamps; ``max_tokens`` is left at 1 for the caller to set."""
    has = params.HasField
    out = Sampling(max_tokens=1)
    for name in _OPTIONAL:
        setattr(out, name, clamps.apply(name, getattr(params, name) if has(name) else None))
    n = clamps.apply("n", params.n if has("n") else None)
    out.n = 1 if n is None else n
    out.min_tokens = clamps.apply("min_tokens", params.min_tokens) or 0
    out.seed = params.seed if has("seed") else None
    out.prompt_logprobs = params.prompt_logprobs if has("prompt_logprobs") else None
    out.stop = list(params.stop)
    out.stop_token_ids = list(params.stop_token_ids)
    out.include_stop_str_in_output = params.include_stop_str_in_output
    out.ignore_eos = params.ignore_eos
    out.bad_words = list(params.bad_words)
    if params.logit_bias:
        out.logit_bias = dict(params.logit_bias)
    if params.allowed_token_ids:
        out.allowed_token_ids = list(params.allowed_token_ids)
    if has("skip_special_tokens"):
        out.skip_special_tokens = params.skip_special_tokens
    if has("spaces_between_special_tokens"):
        out.spaces_between_special_tokens = params.spaces_between_special_tokens
    if structured is not None:
        _structure(out, structured)
    return out


def _structure(out: Sampling, structured: pb.StructuredOutput) -> None:
    form = structured.WhichOneof("constraint")
    if form == "json_schema":
        out.json_schema = structured.json_schema
    elif form == "json_object":
        out.json_object = structured.json_object
    elif form == "regex":
        out.regex = structured.regex
    elif form == "grammar":
        out.grammar = structured.grammar
    elif form == "choice":
        out.choice = list(structured.choice.options)


def messages(turns: Sequence[pb.ChatMessage]) -> list[Message]:
    """Chat turns."""
    return [Message(turn.role, turn.content, turn.name, turn.tool_call_id) for turn in turns]


def positions(entries: Sequence[Position]) -> list[pb.PositionLogprobs]:
    """Log-probabilities of some positions."""
    return [
        pb.PositionLogprobs(chosen=_logprob(entry.chosen), top=[_logprob(other) for other in entry.top])
        for entry in entries
    ]


def generate_response(delta: Delta) -> pb.GenerateResponse:
    """A step of a completion."""
    message = pb.GenerateResponse(index=delta.index, text=delta.text, token_ids=delta.token_ids)
    if delta.logprobs:
        message.logprobs.extend(positions(delta.logprobs))
    if delta.prompt_logprobs:
        message.prompt_logprobs.extend(positions(delta.prompt_logprobs))
    if delta.finish_reason:
        message.finish_reason = finish(delta.finish_reason)
        message.stop_reason = delta.stop_reason
    return message


def chat_response(delta: Delta, first: bool) -> pb.ChatResponse:
    """A step of the assistant's turn; ``first`` of its index."""
    message = pb.ChatResponse(index=delta.index, content=delta.text, token_ids=delta.token_ids)
    if first:
        message.role = "assistant"
    if delta.logprobs:
        message.logprobs.extend(positions(delta.logprobs))
    if delta.finish_reason:
        message.finish_reason = finish(delta.finish_reason)
        message.stop_reason = delta.stop_reason
    return message


def finish(reason: str) -> pb.FinishReason:
    """The protocol's word for an engine's; one it does not know is a stop of the engine's own."""
    return FINISH.get(reason, pb.FINISH_REASON_STOP)


def _logprob(entry: Logprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(token_id=entry.token_id, token=entry.token, logprob=entry.logprob, rank=entry.rank)
