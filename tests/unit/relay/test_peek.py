"""What the router reads of an OpenAI request, and the error each kind of bad body gets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.relay.fields import Fields
from router_node.relay.peek import peek
from router_node.relay.settings import RelaySettings
from shared.errors import Code, LayaError
from shared.prefix import PREFIX_BYTES, hash_blocks

SETTINGS = replace(RelaySettings(), max_n=16, max_max_tokens=1000)


def _peek(value: object) -> Fields:
    into = Fields()
    peek(value if isinstance(value, bytes) else json.dumps(value).encode(), into, SETTINGS)
    return into


def test_the_fields_that_route_are_read():
    found = _peek(
        {
            "temperature": 0.5,
            "n": 2,
            "stream": True,
            "max_tokens": 7,
            "messages": [{"role": "user", "content": "hi"}],
            "model": "m",
            "priority": -4,
        }
    )
    assert (found.model, found.max_new_tokens, found.n, found.priority) == ("m", 14, 2, -4)
    assert found.prompt_bytes == len(json.dumps([{"role": "user", "content": "hi"}]))


def test_what_headers_named_stays():
    into = Fields()
    into.priority, into.named, into.prefix = 3, True, (9,)
    peek(json.dumps({"model": "m", "priority": -4, "prompt": "x" * 2000}).encode(), into, SETTINGS)
    assert (into.priority, into.prefix) == (3, (9,))


def test_nulls_count_as_absent():
    found = _peek({"model": "m", "max_tokens": None, "n": None, "stream": None, "priority": None, "prompt": "x"})
    assert (found.max_new_tokens, found.n, found.priority) == (0, 1, 0)


def test_the_newer_name_of_the_limit_wins_and_best_of_counts():
    found = _peek({"model": "m", "max_tokens": 5, "max_completion_tokens": 9, "best_of": 4, "n": 2})
    assert (found.max_new_tokens, found.n) == (36, 4)
    assert _peek({"model": "m", "max_output_tokens": 3, "input": "x"}).max_new_tokens == 3


def test_the_hashed_part_is_bounded_and_inline_media_is_not_taken_for_text():
    found = _peek({"model": "m", "prompt": "x" * 100_000})
    assert found.prefix == hash_blocks(('"' + "x" * 100_000).encode()[:PREFIX_BYTES])
    assert found.prompt_bytes == 100_002
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    found = _peek({"model": "m", "messages": [{"role": "user", "content": [image, image]}]})
    assert found.prompt_bytes < 10_000


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"{", None, "not valid JSON"),
        (b"not json", None, "not valid JSON"),
        (b'{"model": "\xff"}', None, "not valid JSON"),
        (b'{"a":' * 10_000, None, "not valid JSON"),
        (b"[]", None, "JSON object"),
        (b"null", None, "JSON object"),
        ({}, "model", "missing"),
        ({"model": ""}, "model", "missing"),
        ({"model": None}, "model", "missing"),
        ({"model": 7}, "model", "wrong type"),
        ({"model": "m" * 300}, "model", "at most 256"),
        ({"model": "m", "stream": "yes"}, "stream", "wrong type"),
        ({"model": "m", "max_tokens": "12"}, "max_tokens", "expected `int`, got `str`"),
        ({"model": "m", "max_tokens": 1.5}, "max_tokens", "wrong type"),
        ({"model": "m", "max_tokens": 0}, "max_tokens", "1 to 1000"),
        ({"model": "m", "max_tokens": -5}, "max_tokens", "1 to 1000"),
        ({"model": "m", "max_completion_tokens": 0}, "max_completion_tokens", "1 to 1000"),
        ({"model": "m", "max_tokens": 10**30}, "max_tokens", "1 to 1000"),
        ({"model": "m", "n": 0}, "n", "1 to 16"),
        ({"model": "m", "n": 17}, "n", "1 to 16"),
        ({"model": "m", "best_of": 99}, "best_of", "1 to 16"),
        ({"model": "m", "priority": 2**40}, "priority", "32 bits"),
    ],
)
def test_each_bad_body_gets_one_error_that_names_the_field(body, param, says):
    with pytest.raises(LayaError) as caught:
        _peek(body)
    error = caught.value
    assert error.code == Code.INVALID_ARGUMENT
    assert error.http_status == 400
    assert error.param == param
    assert says in error.message


@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: ('{"model":"m","x":' + text).encode()))
def test_any_bytes_are_read_or_refused_and_nothing_else(body):
    try:
        assert _peek(body).model
    except LayaError as error:
        assert error.http_status == 400


@pytest.mark.parametrize("name", ["n", "best_of", "max_tokens", "max_output_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("sign", [b"", b"-"])
def test_an_error_does_not_repeat_a_number_of_a_thousand_digits(name, sign):
    with pytest.raises(LayaError) as caught:
        _peek(b'{"model": "m", "messages": [], "%b": %b%b}' % (name.encode(), sign, b"9" * 1000))
    assert caught.value.param == name
    assert len(caught.value.message) < 100
