"""What a router may say about parameters."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.clamps import NONE, parse
from shared.errors import LayaError


def test_nothing_changes_nothing():
    assert parse(b"") is NONE
    assert parse(b"{}").apply("temperature", 0.5) == 0.5


def test_caps_and_bounds_are_read():
    clamps = parse(b'{"max_n":2,"max_max_tokens":10,"temperature":{"default":0.7,"min":0.1,"max":1}}')
    assert (clamps.max_n, clamps.max_max_tokens) == (2, 10)
    assert [clamps.apply("temperature", v) for v in (None, 0.0, 0.5, 2.0)] == [0.7, 0.1, 0.5, 1]
    assert clamps.apply("top_p", 0.9) == 0.9


def test_whole_parameters_stay_whole():
    value = parse(b'{"max_tokens":{"max":5.0}}').apply("max_tokens", 9)
    assert value == 5 and isinstance(value, int)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b'{"max_n":0}',
        b'{"max_n":"2"}',
        b'{"max_n":true}',
        b'{"colour":{"max":1}}',
        b'{"temperature":5}',
        b'{"temperature":{"max":"hot"}}',
        b'{"x":"' + b"y" * 9000 + b'"}',
    ],
)
def test_nonsense_is_refused(raw):
    with pytest.raises(LayaError, match="laya-clamps cannot be used"):
        parse(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw):
    with contextlib.suppress(LayaError):
        parse(raw)
