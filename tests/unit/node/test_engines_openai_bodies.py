"""OpenAI bodies as an engine's own sampling parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference_node.engines.base import BadRequest, Sampling
from inference_node.engines.openai_bodies import ChatBody, CompletionBody, convert, sampling_of

MESSAGES = [{"role": "user", "content": "hi"}]


def sampling(**more: Any) -> Sampling:
    return sampling_of(convert({"messages": MESSAGES, **more}, ChatBody), 9, None)


def test_what_a_body_says_reaches_the_engine() -> None:
    got = sampling(n=2, stop="x", logit_bias={"5": 1.5}, allowed_token_ids=[1], bad_words=["b"], seed=3, top_k=4)
    assert (got.max_tokens, got.n, list(got.stop), got.logit_bias) == (9, 2, ["x"], {5: 1.5})
    assert (got.allowed_token_ids, got.bad_words, got.seed, got.top_k) == ([1], ["b"], 3, 4)
    assert sampling() == Sampling(9, stop=[])


def test_each_form_of_structured_output() -> None:
    schema = {"type": "object"}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert json.loads(sampling(response_format=named).json_schema or "") == schema
    assert sampling(response_format={"type": "json_object"}).json_object
    assert not sampling(response_format={"type": "text"}).json_object
    forms = {"json": schema, "choice": ["a"], "regex": "r", "grammar": "g", "json_object": True}
    got = {name: sampling(structured_outputs={name: value}) for name, value in forms.items()}
    assert json.loads(got["json"].json_schema or "") == schema
    assert (got["choice"].choice, got["regex"].regex, got["grammar"].grammar) == (["a"], "r", "g")
    assert got["json_object"].json_object


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        sampling(**more)
    assert refused.value.param == param


def test_a_wrong_type_names_its_place() -> None:
    with pytest.raises(BadRequest, match="temperature: expected") as refused:
        convert({"prompt": "x", "temperature": "hot"}, CompletionBody)
    assert refused.value.param == "temperature"
