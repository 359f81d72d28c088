"""Routing fields from metadata, and clear words for what is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.relay import fields
from shared import headers as names
from shared.errors import Code, LayaError


def test_the_sdk_s_metadata_makes_reading_the_message_needless():
    found = fields.from_metadata(
        {
            names.MODEL: b"smollm2",
            names.SESSION: b"chat-7",
            names.PROMPT_TOKENS: b"120",
            names.MAX_TOKENS: b"64",
            names.PREFIX: b"00000000000000ff,ffffffffffffffff",
            names.PRIORITY: b"-3",
        }
    )
    assert found.complete
    assert (found.model, found.session, found.prompt_tokens, found.max_new_tokens) == ("smollm2", b"chat-7", 120, 64)
    assert found.prefix == (255, 2**64 - 1)
    assert found.named and found.priority == -3


@pytest.mark.parametrize("left_out", [names.MODEL, names.PROMPT_TOKENS, names.MAX_TOKENS])
def test_metadata_that_leaves_something_out_is_not_complete(left_out):
    whole = {names.MODEL: b"m", names.PROMPT_TOKENS: b"1", names.MAX_TOKENS: b"1"}
    del whole[left_out]
    assert not fields.from_metadata(whole).complete


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.MODEL, b"x" * 257),
        (names.MODEL, b"\xff"),
        (names.SESSION, b"x" * 257),
        (names.PROMPT_TOKENS, b"many"),
        (names.PROMPT_TOKENS, b"-1"),
        (names.PROMPT_TOKENS, b"1_000"),
        (names.PROMPT_TOKENS, b"99999999999"),
        (names.MAX_TOKENS, b"0"),
        (names.MAX_TOKENS, b" 5"),
        (names.PRIORITY, b"--1"),
        (names.PRIORITY, b"9999999999"),
        (names.PRIORITY, b"1.5"),
        (names.PREFIX, b"00"),
        (names.PREFIX, b"00000000000000zz"),
        (names.PREFIX, b"0000000000000000;0000000000000000"),
        (names.PREFIX, b",".join([b"0" * 16] * 65)),
    ],
)
def test_a_malformed_value_is_an_invalid_argument_that_names_it(name, value):
    with pytest.raises(LayaError) as caught:
        fields.from_metadata({name: value})
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert name.decode() in caught.value.message


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=64))
def test_prefixes_survive_their_text_form(hashes):
    assert fields.prefixes(b",".join(b"%016x" % value for value in hashes)) == tuple(hashes)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_and_nothing_else(value):
    for name in sorted(names.CLIENT_SET - {names.NO_MIGRATE}):
        try:
            fields.from_metadata({name: value})
        except LayaError as error:
            assert error.code == Code.INVALID_ARGUMENT
