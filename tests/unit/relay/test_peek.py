"""What the router reads of an OpenAI request, and the error each kind of bad body gets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.relay.peek import PREFIX_BYTES, peek
from shared.errors import Code, LayaError


def _peek(value: object, max_n: int = 16, max_max_tokens: int = 1000):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return peek(body, max_n, max_max_tokens)


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
    assert (found.model, found.stream, found.max_tokens, found.n, found.priority) == ("m", True, 7, 2, -4)
    assert json.loads(found.prompt) == [{"role": "user", "content": "hi"}]
    assert found.prompt_bytes == len(found.prompt)


def test_nulls_count_as_absent():
    found = _peek({"model": "m", "max_tokens": None, "n": None, "stream": None, "priority": None, "prompt": "x"})
    assert (found.max_tokens, found.n, found.stream, found.priority) == (None, 1, False, None)


def test_the_newer_name_of_the_limit_wins_and_best_of_counts():
    found = _peek({"model": "m", "max_tokens": 5, "max_completion_tokens": 9, "best_of": 4, "n": 2})
    assert (found.max_tokens, found.n) == (9, 4)
    assert _peek({"model": "m", "max_output_tokens": 3, "input": "x"}).max_tokens == 3


def test_the_prompt_kept_for_hashing_is_bounded_and_inline_media_is_not_taken_for_text():
    found = _peek({"model": "m", "prompt": "x" * 100_000})
    assert len(found.prompt) == PREFIX_BYTES
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
