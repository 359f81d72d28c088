"""A stream that another vLLM began, taken up by this one; and which streams that is exact for.

The front end is given the original prompt and hears the client's tokens once more, so that its detokenizer, its search
for stop strings and the application's parsers are where they were. The core is given prompt and tokens together and
what is left of the budget: to it, this is a prompt. So everything that the core computes from the tokens of the
output alone, apart from those of the prompt, cannot go on.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inference_node.engines.base import Past, Sampling

GREEDY: Final = 1e-5  # temperatures below are greedy to vLLM
# What the core knows of the output alone, and what is lost.
_COUNTED: Final = {
    "presence_penalty": "presence_penalty counts the tokens of the answer alone",
    "frequency_penalty": "frequency_penalty counts the tokens of the answer alone",
    "bad_words": "bad_words are compared with the tokens of the answer alone",
    "structured_outputs": "structured output",
    "thinking_token_budget": "thinking_token_budget counts the tokens of the answer alone",
    "repetition_detection": "repetition_detection looks at the tokens of the answer alone",
    "prompt_logprobs": "log-probabilities of the prompt",
}
_ASKED: Final = ("temperature", "seed", *_COUNTED)


def asked(sampling: Sampling, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What matters here of a request's parameters, the model's own defaults where it says nothing."""
    values = {name: getattr(sampling, name, None) for name in _ASKED}
    return {name: defaults.get(name) if value is None else value for name, value in values.items()}


def refusal(values: Mapping[str, Any]) -> str:
    """Why a stream with these parameters cannot go on exactly, empty where it can. A seed alone changes nothing."""
    for name, why in _COUNTED.items():
        value = values.get(name)
        if value not in (None, 0, [], ()) or value is True:
            return why
    seed, temperature = values.get("seed"), values.get("temperature")
    if seed is None or seed == -1:
        return ""
    greedy = isinstance(temperature, int | float) and temperature < GREEDY
    return "" if greedy else "the seed's generator cannot be set to where it was"


def params_refusal(params: Any) -> str:
    """The same for parameters as vLLM's application made them of a request."""
    values = {name: getattr(params, name, None) for name in _ASKED}
    return refusal(values)


def engine_refusal(config: Any) -> str:
    """Why no stream can go on in an engine with this configuration, empty where they can."""
    if config.model_config.logits_processors:
        return "logits processors of the operator's own"
    if getattr(config, "watermark_config", None) is not None:
        return "a watermark"
    return "the model is no autoregressive one" if config.model_config.is_diffusion else ""


@dataclass(slots=True)
class Replay:
    """The outputs that say what the client has; ``ended`` when that is all there is."""

    outputs: list[Any]
    ended: bool


def replay(state: Any, params: Any, past: Past, max_model_len: int) -> Replay:
    """Let a new request's state hear the client's tokens, in their parts. Raises Inexact."""
    from vllm.v1.engine import FinishReason

    outputs = []
    count, end, why = 0, None, None
    for part in past.parts:
        if end is not None:
            raise past.fail("the answer ends earlier here")
        count += len(part)
        full = count >= params.max_tokens or state.prompt_len + count >= max_model_len
        end, why = _ending(params, part[-1], full)
        if stop := state.detokenizer.update(list(part), end is FinishReason.STOP):
            end, why = FinishReason.STOP, stop
        output = state.make_request_output(list(part), None, end, why)
        if output is None or state.detokenizer.num_output_tokens() != count:
            raise past.fail("the answer is parted in another way here")
        output.outputs[0].logprobs = None  # they were not computed here
        outputs.append(output)
    if past.finish_reason and (end is None or str(end) != past.finish_reason):
        raise past.fail("the answer does not end there here")
    return Replay(outputs, end is not None)


def _ending(params: Any, token: int, full: bool) -> tuple[Any, Any]:
    """Finish reason and stop reason of a token, by the core's rules and in their order; None where it ends nothing."""
    from vllm.v1.engine import FinishReason

    if token == params.eos_token_id:
        return FinishReason.STOP, None
    if token in (params.stop_token_ids or ()):
        return FinishReason.STOP, token
    return (FinishReason.LENGTH, None) if full else (None, None)


def rest(request: Any, past: Past) -> Any:
    """The core's request: all tokens are its prompt, and its limits are what is left of them."""
    tokens = past.tokens
    params = copy.copy(request.sampling_params)
    params.max_tokens -= len(tokens)
    params.min_tokens = max(params.min_tokens - len(tokens), 0)
    core = copy.copy(request)
    core.prompt_token_ids = [*request.prompt_token_ids, *tokens]
    core.sampling_params = params
    return core


async def resumed(
    llm: Any, prompt: Any, params: Any, request_id: str, past: Past, **about: Any
) -> AsyncGenerator[Any, None]:
    """As the engine's ``generate``: an output for each part of the past, then what is new.

    The first ones come with the first new one, which tells how much of the prompt was cached.
    """
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    request, queue, replayed = await _add(llm, prompt, params, request_id, past, about)
    if replayed.ended:
        for output in replayed.outputs:
            yield output
        return
    most, waiting, finished = len(request.prompt_token_ids), replayed.outputs, False
    try:
        while not finished:
            output = queue.get_nowait() or await queue.get()
            output.num_cached_tokens = min(output.num_cached_tokens or 0, most)
            for earlier in waiting:
                earlier.num_cached_tokens = output.num_cached_tokens
                yield earlier
            waiting = []
            finished = output.finished
            yield output
    except (asyncio.CancelledError, GeneratorExit):
        await llm.abort(queue.request_id, internal=True)
        raise
    except EngineDeadError:
        raise
    except Exception as e:
        await llm.abort(queue.request_id, internal=True)
        raise EngineGenerateError() from e
    finally:
        queue.close()


async def _add(
    llm: Any, prompt: Any, params: Any, request_id: str, past: Past, about: dict[str, Any]
) -> tuple[Any, Any, Replay]:
    """What vLLM's own ``add_request`` does, with the replay between its two halves."""
    from vllm.renderers.inputs.preprocess import extract_prompt_components
    from vllm.v1.engine.exceptions import EngineDeadError
    from vllm.v1.engine.output_processor import RequestOutputCollector

    if llm.errored:
        raise EngineDeadError()
    if params.n != 1 or not isinstance(prompt, dict) or not prompt.get("prompt_token_ids"):
        raise past.fail("only one completion of a prompt of tokens can go on")
    if why := params_refusal(params):
        raise past.fail(why)
    reasoning = {name: about.pop(name, None) for name in ("reasoning_ended", "reasoning_parser_kwargs")}
    about.pop("prompt_text", None)
    processor, outputs = llm.input_processor, llm.output_processor
    tasks = await llm.get_supported_tasks()
    request = processor.process_inputs(request_id, prompt, params, supported_tasks=tasks, **about)
    for name, value in reasoning.items():
        if value is not None:
            setattr(request, name, value)
    processor.assign_request_id(request)
    llm._run_output_handler()
    text, _, _ = extract_prompt_components(llm.model_config, prompt)
    queue = RequestOutputCollector(params.output_kind, request.request_id)
    outputs.add_request(request, text, None, 0, queue)
    state = outputs.request_states[request.request_id]
    try:
        replayed = replay(state, request.sampling_params, past, llm.model_config.max_model_len)
    except BaseException:
        outputs._finish_request(state)
        raise
    if replayed.ended:
        outputs._finish_request(state)
        return request, queue, replayed
    core = rest(request, past)
    # Its statistics are of what it does here.
    state.prompt_len, state.max_tokens_param = len(core.prompt_token_ids), core.sampling_params.max_tokens
    try:
        await llm.engine_core.add_request_async(core)
    except BaseException:
        await llm.abort(request.request_id, internal=True)
        raise
    return request, queue, replayed
