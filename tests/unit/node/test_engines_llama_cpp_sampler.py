"""How tokens are drawn: greedy, seeded, steered, by grammar; with llama.cpp's own samplers over known logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inference_node.engines.base import BadRequest, Sampling
from inference_node.engines.llama_cpp_native import Model
from inference_node.engines.llama_cpp_sampler import Candidates, Chooser, Defaults, make_grammar, position
from tests.support import llama


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    found = llama.load()
    yield found
    found.close()


def raw(model: Model, **known: float) -> Any:
    """Logits of 0, but for tokens named as t5=3.0."""
    out = np.zeros(model.tokens, np.float32)
    for name, value in known.items():
        out[int(name[1:])] = value
    return out


def draw(
    model: Model, logits: Any, times: int = 1, closed: bool = False, grammar: str = "", **sampling: Any
) -> list[int]:
    prompt, index = sampling.pop("prompt", ()), sampling.pop("index", 0)
    chooser = Chooser(model, Sampling(64, **sampling), Defaults(), grammar, index, prompt, 64)
    try:
        candidates = Candidates(model)
        return [chooser.choose(logits.copy(), candidates, closed) for _ in range(times)]
    finally:
        chooser.close()
        chooser.close()


def test_greedy_takes_the_likeliest(model: Model) -> None:
    assert draw(model, raw(model, t500=3.0, t501=2.0), temperature=0.0) == [500]


def test_a_seed_repeats_and_completions_of_a_request_differ(model: Model) -> None:
    flat = raw(model)
    first = draw(model, flat, 8, seed=3, temperature=1.0)
    assert first == draw(model, flat, 8, seed=3, temperature=1.0)
    assert first != draw(model, flat, 8, seed=3, temperature=1.0, index=1)
    assert draw(model, flat, 4, seed=-7, temperature=1.0) == draw(model, flat, 4, seed=-7, temperature=1.0)


def test_cuts_leave_only_the_likely(model: Model) -> None:
    logits = raw(model, t600=20.0, t601=19.9, t602=15.0)
    for cut in ({"top_k": 2}, {"top_k": -1, "top_p": 0.6}, {"top_k": -1, "min_p": 0.5}):
        assert set(draw(model, logits, 40, temperature=1.5, seed=1, **cut)) <= {600, 601}


def test_biases_and_lists_steer(model: Model) -> None:
    logits = raw(model, t700=5.0)
    assert draw(model, logits, temperature=0.0, logit_bias={701: 50.0}) == [701]
    assert draw(model, logits, temperature=0.0, logit_bias={700: -100.0}) != [700]
    assert draw(model, logits, temperature=0.0, allowed_token_ids=[702]) == [702]


def test_penalties_count_what_they_should(model: Model) -> None:
    logits = raw(model, t800=5.0, t801=4.0)
    assert draw(model, logits, 2, temperature=0.0, presence_penalty=2.0) == [800, 801]
    assert draw(model, logits, 2, temperature=0.0, frequency_penalty=2.0) == [800, 801]
    assert draw(model, logits, temperature=0.0, presence_penalty=2.0, prompt=[800]) == [800]
    assert draw(model, logits, temperature=0.0, repetition_penalty=2.0, prompt=[800]) == [801]


def test_a_closed_answer_draws_neither_an_end_nor_a_stop_token(model: Model) -> None:
    end = min(model.ends)
    logits = raw(model, t900=5.0, t901=4.0)
    logits[end] = 9.0
    assert draw(model, logits, temperature=0.0, stop_token_ids=[900]) == [end]
    assert draw(model, logits, temperature=0.0, stop_token_ids=[900], closed=True) == [901]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_is_followed_to_its_end(model: Model, temperature: float) -> None:
    text, chooser = b"", None
    chooser = Chooser(
        model, Sampling(64, temperature=temperature, seed=1), Defaults(), 'root ::= "yes" | "no"', 0, (), 64
    )
    candidates, logits = Candidates(model), raw(model)
    for _ in range(10):
        token = chooser.choose(logits, candidates, False)
        if token in model.ends:
            break
        text += model.piece(token, False)
    assert text in (b"yes", b"no")
    chooser.close()


def test_where_a_grammar_may_only_end_and_must_not_there_is_no_token(model: Model) -> None:
    chooser = Chooser(model, Sampling(64, temperature=0.0, min_tokens=60), Defaults(), 'root ::= "x"?', 0, (), 64)
    candidates, logits = Candidates(model), raw(model)
    tokens = [chooser.choose(logits, candidates, True) for _ in range(2)]
    chooser.close()
    assert model.piece(tokens[0], False) == b"x" and tokens[1] < 0


def test_a_grammar_that_is_none_is_refused(model: Model) -> None:
    with pytest.raises(BadRequest, match="no GBNF"):
        make_grammar(model, "root ::= nothing")


def test_log_probabilities_are_the_models_own(model: Model) -> None:
    logits = raw(model, t1000=9.0, t1001=8.0, t1002=7.0)
    got = position(model, logits, 1001, 2)
    assert (got.chosen.token_id, got.chosen.rank) == (1001, 2)
    assert [(e.token_id, e.rank) for e in got.top] == [(1000, 1), (1002, 3)]
    total = np.log(np.exp(logits.astype(np.float64)).sum())
    assert got.chosen.logprob == pytest.approx(8.0 - total)
    unlikely = position(model, logits, 5, 1)
    assert [e.token_id for e in unlikely.top] == [1000] and unlikely.chosen.rank == 4


def test_defaults_are_llama_cpps_where_the_file_has_none(model: Model) -> None:
    assert Defaults.of(model) == Defaults()
