"""Keys of a body that llama_cpp must not leave unheard."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node.engines.base import BadRequest
from inference_node.engines.llama_cpp_openai import LlamaOpenAI

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def app() -> LlamaOpenAI:
    nobody: Any = None
    return LlamaOpenAI(nobody)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": TOOLS}, "tools"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tools"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_what_would_change_the_answer_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        app().check_body(body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "body",
    [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"continue_final_message": False}, {"user": "x"}],
)
def test_what_changes_nothing_passes(body: dict[str, Any]) -> None:
    app().check_body(body)
