"""Between the seam's plain data and vLLM's objects: sampling parameters in, deltas out, errors as the seam's own.

Everything here runs per request or per token, so vLLM's names are imported by the functions that make its objects,
and what comes back is read by attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference_node.engines.base import (
    BadRequest,
    Delta,
    EngineError,
    GenerateCall,
    Inexact,
    Logprob,
    Position,
    Sampling,
)

# Fields of Sampling that vLLM calls the same and whose None means the model's own default.
_SHAPING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_MAX_MESSAGE = 1000


def sampling_params(sampling: Sampling, defaults: Mapping[str, Any]) -> Any:
    """vLLM's parameters for a stream of deltas.

    ``defaults`` are the model's own (its generation_config), used where a field is None. Raises BadRequest.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    values: dict[str, Any] = {}
    for name in _SHAPING:
        value = getattr(sampling, name)
        if value is None:
            value = defaults.get(name)
        if value is not None:
            values[name] = value
    try:
        return SamplingParams(
            **values,
            n=sampling.n,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            seed=sampling.seed,
            stop=list(sampling.stop) or None,
            stop_token_ids=list(sampling.stop_token_ids) or None,
            include_stop_str_in_output=sampling.include_stop_str_in_output,
            ignore_eos=sampling.ignore_eos,
            logprobs=_ranks(sampling.logprobs),
            prompt_logprobs=_ranks(sampling.prompt_logprobs),
            flat_logprobs=sampling.logprobs is not None or sampling.prompt_logprobs is not None,
            logit_bias=dict(sampling.logit_bias) if sampling.logit_bias else None,
            allowed_token_ids=list(sampling.allowed_token_ids) if sampling.allowed_token_ids else None,
            bad_words=list(sampling.bad_words) or None,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
            structured_outputs=structured_outputs(sampling),
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )
    except Exception as e:
        raise client_error(e) from e


def _ranks(alternatives: int | None) -> int | None:
    """How many of the likeliest tokens to ask for: vLLM may count the chosen one among them, we never do."""
    return alternatives + 1 if alternatives else alternatives


def structured_outputs(sampling: Sampling) -> Any:
    """vLLM's form of the constraint, or None. Raises what vLLM raises."""
    from vllm.sampling_params import StructuredOutputsParams

    if sampling.json_schema is not None:
        return StructuredOutputsParams(json=sampling.json_schema)
    if sampling.json_object:
        return StructuredOutputsParams(json_object=True)
    if sampling.regex is not None:
        return StructuredOutputsParams(regex=sampling.regex)
    if sampling.grammar is not None:
        return StructuredOutputsParams(grammar=sampling.grammar)
    if sampling.choice:
        return StructuredOutputsParams(choice=list(sampling.choice))
    return None


def deltas(output: Any, call: GenerateCall) -> list[Delta]:
    """What one of vLLM's request outputs adds: a delta for each completion in it."""
    asked = call.sampling
    cached = output.num_cached_tokens or 0
    prompt = output.prompt_logprobs
    known = positions(prompt, call.prompt.token_ids, asked.prompt_logprobs or 0) if prompt else ()
    return [
        Delta(
            index=part.index,
            text=part.text,
            token_ids=part.token_ids,
            logprobs=positions(part.logprobs, part.token_ids, asked.logprobs or 0) if part.logprobs else (),
            finish_reason=part.finish_reason or "",
            stop_reason="" if part.stop_reason is None else str(part.stop_reason),
            cached_tokens=cached,
            prompt_logprobs=known,
        )
        for part in output.outputs
    ]


def positions(flat: Any, token_ids: Sequence[int], alternatives: int) -> list[Position]:
    """vLLM's flat log-probabilities as one position per token, each with so many alternatives to the chosen token.

    Nothing comes before a prompt's first token, so that has log-probability 0 and rank 0.
    """
    return [_position(flat, i, token, alternatives) for i, token in enumerate(token_ids[: len(flat)])]


def _position(flat: Any, i: int, token: int, alternatives: int) -> Position:
    """vLLM lists the chosen token first and then the likeliest by rank, among which the chosen one may be again."""
    start, end = flat.start_indices[i], flat.end_indices[i]
    if start == end:
        return Position(Logprob(token, "", 0.0, 0))
    entries = [
        Logprob(flat.token_ids[k], flat.decoded_tokens[k] or "", flat.logprobs[k], flat.ranks[k] or 0)
        for k in range(start, end)
    ]
    chosen = entries[0]
    return Position(chosen, [entry for entry in entries[1:] if entry.token_id != chosen.token_id][:alternatives])


def client_error(error: Exception) -> Exception:
    """BadRequest for what a client did, EngineError for what vLLM did."""
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    if isinstance(error, (BadRequest, EngineError, Inexact)):
        return error
    if isinstance(error, EngineDeadError):
        return EngineError("the engine has died; the node is restarting", fatal=True)
    if isinstance(error, EngineGenerateError):
        cause = error.__cause__
        if isinstance(cause, (VLLMClientError, ValueError, TypeError)):
            return client_error(cause)
        return EngineError(f"the engine failed on this request ({type(cause or error).__name__})")
    if isinstance(error, GracefulHTTPError):
        return EngineError(f"the engine refused the request: {error.message}")
    if isinstance(error, (VLLMClientError, ValueError, TypeError, OverflowError, NotImplementedError)):
        return BadRequest(message_of(error), getattr(error, "parameter", None))
    return EngineError(f"the engine failed on this request ({type(error).__name__})")


def message_of(error: Exception) -> str:
    """An error's own words on one line, without the repetition of field and value that vLLM appends."""
    text = str(error.args[0]) if error.args else str(error)
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"


def quantization_label(method: str | None, settings: Mapping[str, Any]) -> str:
    """How weights are quantized, in the words people use: "w8a8", "w4a16", "fp8", "awq"; "" for not at all.

    ``settings`` is the checkpoint's own ``quantization_config``.
    """
    if not method:
        return ""
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return method
    group = next(iter(groups.values()))
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    bits = weights.get("num_bits")
    if not bits:
        return method
    if weights.get("type") == "float" and bits == 8:
        return "fp8"
    return f"w{bits}a{inputs['num_bits'] if inputs else 16}"
