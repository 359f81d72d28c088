"""Which sampling parameters make sense."""

from __future__ import annotations

import pytest

from inference_node.engines.base import BadRequest, Sampling
from inference_node.sampling import check, check_max_tokens


def test_ordinary_parameters_pass():
    check(Sampling(10), 16)
    check(Sampling(10, n=4, temperature=0.7, top_p=1, top_k=-1, min_p=0, seed=1, stop=["a"], logprobs=0), 16)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -1}, "min_p"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 11}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"logit_bias": dict.fromkeys(range(301), 1.0)}, "logit_bias"),
        ({"json_object": True, "regex": "a"}, "structured"),
        ({"choice": ["a", ""]}, "choice"),
        ({"regex": ""}, "regex"),
        ({"json_schema": "x" * 200_000}, "json_schema"),
    ],
)
def test_each_nonsense_is_named(change, param):
    with pytest.raises(BadRequest) as e:
        check(Sampling(10, **change), 16)
    assert e.value.param == param
    with pytest.raises(BadRequest):
        check(Sampling(10, **change), 16, "sampling.")


def test_max_tokens_has_a_floor_and_a_cap():
    check_max_tokens(1, 10, "max_tokens")
    for value, words in ((0, "1 or more"), (-5, "1 or more"), (11, "allows 10")):
        with pytest.raises(BadRequest, match=words):
            check_max_tokens(value, 10, "max_tokens")
