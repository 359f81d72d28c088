"""Answers in OpenAI's words."""

from __future__ import annotations

import json

from inference_node.engines.base import Logprob, Position
from inference_node.engines.openai_replies import ChatShape, Choice, CompletionShape

# The chosen token is the second likeliest.
POSITION = Position(Logprob(7, "b", -2.0, 2), (Logprob(5, "a", -1.0, 1), Logprob(9, "c", -3.0, 3)))


def test_the_likeliest_tokens_come_first_whichever_was_chosen() -> None:
    choice = Choice()
    chat = ChatShape("id", "m", 1, "e").part(0, "b", [POSITION], choice)["logprobs"]["content"][0]
    assert (chat["token"], [entry["token"] for entry in chat["top_logprobs"]]) == ("b", ["a", "b"])
    text = CompletionShape("id", "m", 1, "e").part(0, "b", [POSITION], choice)["logprobs"]
    assert (text["tokens"], text["top_logprobs"], text["text_offset"]) == (["b"], [{"a": -1.0, "b": -2.0}], [0])


def test_the_first_event_of_a_chat_has_the_role_and_the_engines_fingerprint() -> None:
    shape, choice = ChatShape("id", "m", 1, "e"), Choice()
    event = json.loads(shape.event([shape.part(0, "x", (), choice)]).removeprefix(b"data: "))
    assert event["system_fingerprint"] == "e"
    assert event["choices"][0]["delta"] == {"role": "assistant", "content": "x"}
    choice.started = True
    assert shape.part(0, "y", (), choice)["delta"] == {"content": "y"}
