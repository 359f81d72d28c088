"""What a call to llama_cpp must not ask for, each named."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node.engines.base import BadRequest, GenerateCall, Prompt, Sampling
from inference_node.engines.llama_cpp_checks import check


def call(tokens: Any = (1, 2), lora: str = "", **sampling: Any) -> GenerateCall:
    return GenerateCall("r", Prompt(tokens), Sampling(**{"max_tokens": 4, **sampling}), lora=lora)


def test_what_it_can_do_passes() -> None:
    check(call(logit_bias={9: 1.0}, allowed_token_ids=[0, 9], stop_token_ids=[3], grammar="root ::= x"), 10, 3)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (call(max_tokens=0), "max_tokens"),
        (call(prompt_logprobs=0), "prompt_logprobs"),
        (call(bad_words=["x"]), "bad_words"),
        (call(regex="a"), "regex"),
        (call(lora="a"), "lora"),
        (call(tokens=()), "prompt"),
        (call(tokens=(1, 10)), "prompt"),
        (call(tokens=(-1,)), "prompt"),
        (call(tokens=(1, 2, 3)), "prompt"),
        (call(stop_token_ids=[10]), "stop_token_ids"),
        (call(logit_bias={-1: 1.0}), "logit_bias"),
        (call(allowed_token_ids=[10]), "allowed_token_ids"),
        (call(allowed_token_ids=[]), "allowed_token_ids"),
    ],
)
def test_what_it_cannot_is_refused_by_name(wrong: GenerateCall, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check(wrong, 10, 3)
    assert refused.value.param == param
