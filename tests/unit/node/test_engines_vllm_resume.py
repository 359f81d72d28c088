"""Which streams vLLM can take up exactly, how it hears again what was said, and what its core is then asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference_node.engines import vllm_resume
from inference_node.engines.base import Inexact, Past, Sampling

pytest.importorskip("vllm")

EOS = 0


def why(defaults: dict[str, Any] | None = None, **values: Any) -> str:
    return vllm_resume.refusal(vllm_resume.asked(Sampling(8, **values), defaults or {}))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.8, "top_p": 0.9, "min_tokens": 4},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.0, "bad_words": []},
        {"seed": 3, "temperature": 0.0},
        {"seed": -1, "temperature": 1.0},
        {"logit_bias": {1: 2.0}, "allowed_token_ids": [1]},
    ],
)
def test_what_looks_at_prompt_and_answer_alike_or_at_neither_goes_on(values: dict[str, Any]):
    assert why(**values) == ""


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -0.5}, "frequency_penalty"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"seed": 3, "temperature": 0.7}, "seed"),
        ({"seed": 3}, "seed"),
    ],
)
def test_what_looks_at_the_answer_alone_does_not(values: dict[str, Any], words: str):
    assert words in why(**values)


def test_the_models_own_defaults_count_where_the_request_says_nothing():
    assert "presence" in why({"presence_penalty": 1.0})
    assert why({"presence_penalty": 1.0}, presence_penalty=0.0) == ""
    assert why({"temperature": 0.0}, seed=3) == ""


def test_parameters_of_the_application_are_judged_alike():
    base = {"temperature": 1.0, "seed": None, "presence_penalty": 0.0, "bad_words": [], "structured_outputs": None}
    assert vllm_resume.params_refusal(SimpleNamespace(**base)) == ""
    assert vllm_resume.params_refusal(SimpleNamespace(**base | {"structured_outputs": object()}))
    assert vllm_resume.params_refusal(SimpleNamespace(**base | {"thinking_token_budget": 5}))


@pytest.mark.parametrize("name", ["logits_processors", "is_diffusion", "watermark_config"])
def test_engines_that_add_to_the_sampling_take_up_nothing(name: str):
    model = SimpleNamespace(logits_processors=None, is_diffusion=False)
    plain = SimpleNamespace(model_config=model, watermark_config=None)
    assert vllm_resume.engine_refusal(plain) == ""
    setattr(plain if name == "watermark_config" else model, name, ["x"])
    assert vllm_resume.engine_refusal(plain)


class Detokenizer:
    """Letters for tokens; the text "stop" is a stop string."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text = ""

    def update(self, tokens: list[int], terminated: bool) -> str | None:
        self.tokens += tokens
        self.text += "".join(map(chr, tokens[: len(tokens) - terminated]))
        return "stop" if "stop" in self.text else None

    def num_output_tokens(self) -> int:
        return len(self.tokens)


class State:
    prompt_len = 3

    def __init__(self) -> None:
        self.detokenizer = Detokenizer()

    def make_request_output(self, tokens: list[int], pooled: Any, end: Any, reason: Any) -> Any:
        part = SimpleNamespace(
            token_ids=tokens, logprobs=["x"], finish_reason=None if end is None else str(end), stop_reason=reason
        )
        return SimpleNamespace(outputs=[part])


def replay(*parts: str, finish: str = "", max_tokens: int = 20, **params: Any) -> Any:
    values = SimpleNamespace(**{"max_tokens": max_tokens, "eos_token_id": EOS, "stop_token_ids": [7], **params})
    past = Past([list(map(ord, part)) for part in parts], finish)
    found = vllm_resume.replay(State(), values, past, 100)
    return found, [(o.outputs[0].finish_reason, o.outputs[0].stop_reason) for o in found.outputs]


def test_each_part_is_heard_as_it_was_said_and_brings_no_log_probabilities():
    found, ends = replay("ab", "c")
    assert [o.outputs[0].token_ids for o in found.outputs] == [[97, 98], [99]]
    assert ends == [(None, None), (None, None)] and not found.ended
    assert all(o.outputs[0].logprobs is None for o in found.outputs)


@pytest.mark.parametrize(
    ("parts", "values", "end"),
    [
        (["a", "\0"], {}, ("stop", None)),
        (["a", "\7"], {}, ("stop", 7)),
        (["st", "op"], {}, ("stop", "stop")),
        (["ab", "c"], {"max_tokens": 3}, ("length", None)),
        (["a", "\0"], {"finish": "stop"}, ("stop", None)),
    ],
)
def test_an_end_that_was_reached_is_found_again(parts: list[str], values: dict[str, Any], end: tuple[str, Any]):
    found, ends = replay(*parts, **values)
    assert found.ended and ends[-1] == end


@pytest.mark.parametrize(
    ("parts", "values"), [(["a\0"[1:], "b"], {}), (["ab"], {"finish": "length"}), (["stop", "x"], {})]
)
def test_a_past_that_this_engine_would_not_have_said_is_inexact(parts: list[str], values: dict[str, Any]):
    with pytest.raises(Inexact):
        replay(*parts, **values)


def test_the_core_gets_everything_as_its_prompt_and_what_is_left_of_the_limits():
    params = SimpleNamespace(max_tokens=10, min_tokens=2)
    request = SimpleNamespace(prompt_token_ids=[1, 2], sampling_params=params)
    core = vllm_resume.rest(request, Past([[3], [4, 5]]))
    assert core.prompt_token_ids == [1, 2, 3, 4, 5]
    assert (core.sampling_params.max_tokens, core.sampling_params.min_tokens) == (7, 0)
    assert (request.prompt_token_ids, params.max_tokens, params.min_tokens) == ([1, 2], 10, 2)
