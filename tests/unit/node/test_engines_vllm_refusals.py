"""Why each of vLLM's refusals is one: what it samples with, given an answer's tokens, and given them as prompt.

A resumed core has prompt and delivered tokens together for its prompt, and an answer that is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from inference_node.engines import vllm_resume
from inference_node.engines.base import Past, Sampling

pytest.importorskip("vllm")

import torch

VOCAB = 128
PROMPT, SAID = [3, 4, 5], [9, 9, 7]
SCHEMA = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}'


def why(**values: Any) -> str:
    return vllm_resume.refusal(vllm_resume.asked(Sampling(8, **values), {}))


def logits(prompt: list[int], answer: list[int], presence: float, frequency: float, repetition: float) -> torch.Tensor:
    """What is left of equal logits once vLLM has applied its penalties."""
    from vllm.v1.sample.ops.penalties import apply_all_penalties

    flat = torch.ones(1, VOCAB)
    amounts = [torch.tensor([amount]) for amount in (presence, frequency, repetition)]
    return apply_all_penalties(flat, torch.tensor([prompt]), *amounts, output_token_ids=[answer])


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("amount", [0.5, -0.5])
def test_a_penalty_on_the_answer_s_tokens_is_lost_with_them(name: str, amount: float) -> None:
    amounts = (amount, 0.0, 1.0) if name == "presence_penalty" else (0.0, amount, 1.0)
    undisturbed, resumed = logits(PROMPT, SAID, *amounts), logits([*PROMPT, *SAID], [], *amounts)
    assert undisturbed[0, 9] != resumed[0, 9] == 1.0, "what was said counts no more"
    assert name in why(**{name: amount})


@pytest.mark.parametrize("amount", [0.7, 1.3])
def test_a_repetition_penalty_looks_at_prompt_and_answer_alike_and_is_not_refused(amount: float) -> None:
    amounts = (0.0, 0.0, amount)
    assert torch.equal(logits(PROMPT, SAID, *amounts), logits([*PROMPT, *SAID], [], *amounts))
    assert logits(PROMPT, SAID, *amounts)[0, 9] != 1.0
    assert why(repetition_penalty=amount) == ""


def test_bad_words_that_began_before_the_cut_would_be_said_after_it() -> None:
    from vllm.v1.sample.ops.bad_words import apply_bad_words

    word = [7, 8]
    undisturbed, resumed = torch.zeros(1, VOCAB), torch.zeros(1, VOCAB)
    apply_bad_words(undisturbed, {0: [word]}, [SAID])
    apply_bad_words(resumed, {0: [word]}, [[]])
    assert undisturbed[0, 8] == -float("inf") and resumed[0, 8] == 0.0
    assert "bad_words" in why(bad_words=["x"])


@pytest.mark.parametrize("cut", range(9))
def test_min_tokens_are_lowered_by_what_was_delivered_and_so_not_refused(cut: int) -> None:
    """An end is forbidden for as long, by vLLM's own rule, which counts the answer's tokens."""
    from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor

    params = SimpleNamespace(max_tokens=12, min_tokens=5, all_stop_token_ids={0}, structured_outputs=None)
    request = SimpleNamespace(prompt_token_ids=PROMPT, sampling_params=params)
    core = vllm_resume.rest(request, Past([[9]] * cut)).sampling_params
    for more in range(12 - cut):
        undisturbed = MinTokensLogitsProcessor.add_request(params, None, [9] * (cut + more))
        resumed = MinTokensLogitsProcessor.add_request(core, None, [9] * more)
        assert (undisturbed is None) == (resumed is None)
    assert core.max_tokens == 12 - cut
    assert why(min_tokens=5) == ""


def test_a_seed_s_generator_begins_anew() -> None:
    """vLLM has one for each seeded request, draws from it at each token, and cannot be told where it was."""

    def draws(seed: int, count: int) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        return [float(torch.empty(1).exponential_(generator=generator)) for _ in range(count)]

    undisturbed = draws(7, 8)
    assert draws(7, 4) == undisturbed[:4] != undisturbed[4:]
    assert "seed" in why(seed=7, temperature=0.8)
    assert why(seed=7, temperature=0.0) == "", "greedy decoding draws nothing"


FORMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "json_schema": (lambda compiler: compiler.compile_json_schema(SCHEMA, any_whitespace=False), '{"name": "ab"}'),
    "json_object": (lambda compiler: compiler.compile_builtin_json_grammar(), '{"a": [1]}'),
    "regex": (lambda compiler: compiler.compile_regex("ab[0-9]{3}"), "ab123"),
    "grammar": (lambda compiler: compiler.compile_grammar('root ::= "yes " [a-c]+ "."'), "yes abc."),
    "choice": (lambda compiler: compiler.compile_grammar('root ::= "north" | "south"'), "south"),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_automaton_that_begins_anew_refuses_the_rest_and_asks_for_the_beginning(form: str) -> None:
    """The core advances it by the answer's tokens, and has none: it would begin the form again in mid-answer."""
    xgrammar = pytest.importorskip("xgrammar")
    letters = [chr(i) for i in range(VOCAB)]
    info = xgrammar.TokenizerInfo(letters, stop_token_ids=[0])
    compiled = FORMS[form][0](xgrammar.GrammarCompiler(info))
    text = FORMS[form][1]
    undisturbed = xgrammar.GrammarMatcher(compiled)
    assert all(undisturbed.accept_token(ord(letter)) for letter in text)
    for cut in range(1, len(text)):
        anew = xgrammar.GrammarMatcher(compiled)
        assert not all(anew.accept_token(ord(letter)) for letter in text[cut:]), cut
    assert xgrammar.GrammarMatcher(compiled).accept_token(ord(text[0]))
    assert vllm_resume.params_refusal(SimpleNamespace(structured_outputs=object())) == "structured output"


def test_log_probabilities_of_the_prompt_would_be_those_of_a_longer_one() -> None:
    """The core's prompt has the answer's tokens in it: it would tell of these too, as if the client had sent them."""
    params = SimpleNamespace(max_tokens=10, min_tokens=0, prompt_logprobs=1)
    core = vllm_resume.rest(SimpleNamespace(prompt_token_ids=PROMPT, sampling_params=params), Past([SAID]))
    assert core.sampling_params.prompt_logprobs == 1
    assert core.prompt_token_ids == [*PROMPT, *SAID]
    assert "prompt" in why(prompt_logprobs=1)
