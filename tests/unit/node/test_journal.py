"""Which streams can go on elsewhere, why the others cannot, and which tokens go with which bytes."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node import bodies, journal
from inference_node.call import Call
from inference_node.engines.base import Sampling
from inference_node.engines.sim import SimEngine
from inference_node.prepare import Caps
from shared.config.schema import InferenceConfig

CALL = Call({}, "r")
UNWILLING = Call({b"laya-no-migrate": b"1"}, "r")
SIM = SimEngine(InferenceConfig(engine="sim", model="demo"))


def typed(call: Call = CALL, **values: Any) -> str:
    return journal.typed_refusal(Sampling(max_tokens=4, **values), call, SIM)


def web(path: str = bodies.CHAT, call: Call = CALL, prompts: int = 1, **values: Any) -> str:
    base: dict[str, Any] = {"model": "demo", "stream": True}
    base |= {"messages": [{"role": "user", "content": "x"}]} if path == bodies.CHAT else {"prompt": "x"}
    plan = bodies.plan(path, base | values, call, Caps(8, 4096))
    return journal.tunnel_refusal(plan, prompts, call, SIM)


def test_plain_streams_can_go_on():
    assert typed(temperature=0.7, seed=3, stop=["x"], min_tokens=2, logprobs=1) == ""
    for path in (bodies.CHAT, bodies.COMPLETIONS):
        assert web(path, temperature=0.7, seed=3, stop=["x"], stream_options={"include_usage": True}) == ""
    assert web(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="auto") == ""
    assert web(logprobs=False, response_format={"type": "text"}, user=None) == ""
    assert web(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}]}]) == ""


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"n": 2}, "n is over 1"),
        ({"json_schema": "{}"}, "structured output"),
        ({"json_object": True}, "structured output"),
        ({"regex": "a"}, "structured output"),
        ({"grammar": "root ::= x"}, "structured output"),
        ({"choice": ["a"]}, "structured output"),
        ({"prompt_logprobs": 0}, "log-probabilities of the prompt"),
        ({"call": UNWILLING}, "the client asked for that"),
    ],
)
def test_typed_streams_that_cannot_go_on(values: dict[str, Any], why: str):
    assert typed(**values) == why


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"stream": False}, "the answer is no stream"),
        ({"n": 2}, "n is over 1"),
        ({"path": bodies.COMPLETIONS, "best_of": 2}, "n is over 1"),
        ({"use_beam_search": True}, "beam search"),
        ({"response_format": {"type": "json_object"}}, "structured output"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured output"),
        ({"guided_regex": "a"}, "structured output"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "structured output"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "structured output"),
        ({"logprobs": True}, "log-probabilities over HTTP"),
        ({"path": bodies.COMPLETIONS, "logprobs": 0}, "log-probabilities over HTTP"),
        ({"path": bodies.COMPLETIONS, "logprobs": 2}, "log-probabilities over HTTP"),
        ({"path": bodies.COMPLETIONS, "echo": True, "prompt_logprobs": 1}, "log-probabilities over HTTP"),
        ({"path": bodies.COMPLETIONS, "prompts": 2}, "several prompts"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "input that is not text"),
        ({"thinking_token_budget": 5}, "the field thinking_token_budget"),
        ({"call": UNWILLING}, "the client asked for that"),
    ],
)
def test_tunnelled_answers_that_cannot_go_on(values: dict[str, Any], why: str):
    assert web(**values) == why


def test_a_path_that_is_not_replayed_says_so():
    plan = bodies.Plan(bodies.RESPONSES, {"stream": True, "input": "x"})
    assert journal.tunnel_refusal(plan, 1, CALL, SIM) == "this path is not replayed"


def test_the_nodes_word_is_one_or_zero_and_why():
    assert journal.answer("") == b"1"
    assert journal.answer("n is over 1") == b"0; n is over 1"
    assert journal.answer("the field é") == b"0; the field ?"


def test_each_part_is_taken_once_and_as_it_was():
    handed = journal.Handed()
    handed.tell([1, 2], "")
    handed.tell([], "")
    handed.tell([3], "stop")
    assert handed.take() == [([1, 2], ""), ([3], "stop")]
    assert handed.take() == []
