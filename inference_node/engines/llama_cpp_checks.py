"""What engine llama_cpp cannot do, or cannot do for a request: refused with the field's name, never left unheard."""

from __future__ import annotations

from inference_node.engines.base import BadRequest, GenerateCall, Sampling


def check(call: GenerateCall, vocabulary: int, max_seq_len: int) -> None:
    """Raise BadRequest unless the engine, with a vocabulary of so many tokens, can run this call."""
    sampling = call.sampling
    _check_features(sampling)
    if call.lora:
        raise BadRequest("the llama_cpp engine has no adapters", "lora")
    tokens = call.prompt.token_ids
    if not tokens:
        raise BadRequest("the prompt is empty", "prompt")
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise BadRequest(f"token id {token} is not in the vocabulary", "prompt")
    if len(tokens) + 1 > max_seq_len:
        raise BadRequest(
            f"the prompt has {len(tokens)} tokens, the context has {max_seq_len} for prompt and answer", "prompt"
        )
    _check_ids(sampling, vocabulary)


def _check_features(sampling: Sampling) -> None:
    if sampling.max_tokens < 1:
        raise BadRequest(f"max_tokens is {sampling.max_tokens}; it must be 1 or more", "max_tokens")
    if sampling.prompt_logprobs is not None:
        raise BadRequest("the llama_cpp engine gives no log-probabilities of the prompt", "prompt_logprobs")
    if sampling.bad_words:
        raise BadRequest("the llama_cpp engine takes no bad_words; use logit_bias", "bad_words")
    if sampling.regex is not None:
        raise BadRequest("the llama_cpp engine takes no regular expression; use a grammar (GBNF)", "regex")


def _check_ids(sampling: Sampling, vocabulary: int) -> None:
    lists = {
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": sampling.logit_bias or (),
        "allowed_token_ids": sampling.allowed_token_ids or (),
    }
    for name, ids in lists.items():
        for token in ids:
            if not 0 <= token < vocabulary:
                raise BadRequest(f"{name} holds token id {token}, which is not in the vocabulary", name)
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        raise BadRequest("allowed_token_ids is empty; no answer is possible", "allowed_token_ids")
