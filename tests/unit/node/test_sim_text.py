"""The simulator's tokenizer is reversible; its text is a known function of prompt, seed and index."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines import sim_text as text


@given(st.text())
def test_decoding_gives_the_text_back(value):
    try:
        value.encode()
    except UnicodeEncodeError:
        return
    tokens = text.encode(value)
    assert text.decode(tokens) == value
    assert all(text.is_token(t) for t in tokens)


@given(st.lists(st.integers(0, 1023), max_size=50))
def test_generated_words_tokenize_to_themselves(indices):
    tokens = [text.WORDS_AT + i for i in indices]
    assert text.encode(text.decode(tokens)) == tokens


def test_words_are_distinct_and_their_own_tokens():
    assert len(set(text.WORDS)) == 1024
    for i in (0, 511, 1023):
        assert text.encode(text.WORDS[i]) == [text.WORDS_AT + i]


def test_english_costs_about_as_many_tokens_as_a_real_tokenizer_takes():
    sentence = "The capital of France is Paris, and the river that runs through it is the Seine."
    assert 2.0 < len(sentence.encode()) / len(text.encode(sentence)) < 5.0


def test_plain_text_never_becomes_a_special_token():
    assert not set(text.encode("<|eos|><|user|><|end|>")) & set(text.SPECIAL)


def test_special_tokens_show_only_when_asked_for():
    assert text.decode([text.USER, text.EOS]) == ""
    assert text.decode([text.USER, text.EOS], special=True) == "<|user|><|eos|>"


@pytest.mark.parametrize("token", [-1, 262, 511, 1536, 1 << 20, 1 << 26])
def test_ids_outside_the_vocabulary_are_refused(token):
    assert not text.is_token(token)
    with pytest.raises(ValueError, match=f"token id {token} is not"):
        text.token_bytes(token)


def test_expected_tokens_are_a_function_of_prompt_seed_and_index():
    prompt = text.encode("tell me of the sea")
    base = list(text.expected_tokens(prompt, 7, 0))
    assert base == list(text.expected_tokens(prompt, 7, 0))
    assert base[-1] == text.EOS
    for other in (
        list(text.expected_tokens(prompt, 8, 0)),
        list(text.expected_tokens(prompt, 7, 1)),
        list(text.expected_tokens(prompt[:-1], 7, 0)),
    ):
        assert other[:8] != base[:8]


def test_a_lost_repeated_or_swapped_token_shows():
    tokens = list(islice(text.expected_tokens(text.encode("x"), 0, 0, ignore_eos=True), 64))
    same = sum(a == b for a, b in pairwise(tokens))
    assert same <= 1


def test_length_is_natural_unless_told_otherwise():
    prompt = text.encode("hello")
    natural = len(list(text.expected_tokens(prompt, 3)))
    assert text.SHORTEST <= natural <= text.LONGEST
    assert len(list(text.expected_tokens(prompt, 3, min_tokens=natural + 20))) == natural + 21
    endless = list(islice(text.expected_tokens(prompt, 3, ignore_eos=True), natural + 100))
    assert text.EOS not in endless


@given(st.integers(0, (1 << 64) - 1))
def test_natural_lengths_stay_in_their_range(key):
    assert text.SHORTEST <= text.natural_length(key) <= text.LONGEST
