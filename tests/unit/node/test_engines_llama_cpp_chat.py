"""Templates out of a model's file: rendered in a sandbox, refused with a sentence."""

from __future__ import annotations

import pytest

from inference_node.engines.base import BadRequest, Message
from inference_node.engines.llama_cpp_chat import ChatTemplate

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def render(source: str, *messages: Message, **extra: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages or (Message("user", "hi"),), extra)


def test_a_conversation_is_open_for_the_answer() -> None:
    assert render(CHATML) == "<s><|user|>hi</s>\n<|assistant|>"
    assert render(CHATML, add_generation_prompt=False) == "<s><|user|>hi</s>\n"


def test_keyword_arguments_reach_the_template_but_not_its_own_words() -> None:
    assert render("{% if thinking %}yes{% endif %}", thinking=True) == "yes"
    with pytest.raises(BadRequest, match="must not set bos_token"):
        render(CHATML, bos_token="x")


def test_what_templates_use_is_there() -> None:
    assert render("{{ messages | tojson }}", Message("user", "<é>")) == '[{"role": "user", "content": "<é>"}]'
    assert render("{% for x in [1,2] %}{% break %}{% endfor %}{{ strftime_now('%Y')|length }}") == "4"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('no system role') }}", "refuses these messages: no system role"),
        ("{{ missing.part }}", "fails on these messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails on these messages"),
        ("{{ messages.append(1) }}", "fails on these messages"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endfor %}",
            "characters",
        ),
    ],
)
def test_what_a_template_must_not_do_is_refused(source: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        render(source)


def test_a_template_that_is_none_is_said_to_be() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        ChatTemplate("{% for %}", "", "")
