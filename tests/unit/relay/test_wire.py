"""The wire format's pieces: values, ends, and what is no message at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.relay import wire
from shared.pb.laya.v1 import inference_pb2 as pb


@given(st.integers(0, 2**63 - 1))
def test_a_varint_is_read_as_protobuf_writes_it(value):
    raw = pb.SamplingParams(seed=value).SerializeToString()
    assert wire.varint(raw, 1) == (value, len(raw))
    assert wire.skip(raw, 1, len(raw), raw[0]) == len(raw)


@given(st.one_of(st.integers(0, 2**15), st.integers(0, 2**63 - 1)))
def test_a_varint_is_written_as_protobuf_writes_it(value):
    assert wire.put_varint(value) == pb.SamplingParams(seed=value).SerializeToString()[1:]


def test_a_negative_number_is_read_modulo_two_to_the_64():
    raw = pb.SamplingParams(seed=-1).SerializeToString()
    assert wire.varint(raw, 1) == (2**64 - 1, 11)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x78\x01",
        b"\x7a\x03abc",
        b"\x7d1234",
        b"\x7912345678",
        b"\x7b\x08\x01\x7c",
        b"\x7b\x7b\x7c\x12\x01x\x7c",
    ],
)
def test_a_field_is_stepped_over_whole(raw):
    key, pos = wire.tag(raw, 0)
    assert wire.skip(raw, pos, len(raw), key) == len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x78" + b"\xff" * 11 + b"\x01",  # a varint that is too long
        b"\x7a\x05ab",  # bytes that run past the end
        b"\x7c",  # the end of no group
        b"\x7b\x08\x01",  # a group that does not end
        b"\x7b\x84\x01",  # the end of another group
        b"\x7e",  # no such wire type
        b"\x00\x01",  # field number 0
        b"\xff\xff\xff\xff\xff\x01\x01",  # a tag that is too long
        b"\x7a\xff\xff\xff\xff\x7f",  # a length beyond all measure
        b"\x7b" * 200,  # groups nested too deeply
    ],
)
def test_what_is_no_field_is_malformed(raw):
    with pytest.raises((wire.Malformed, IndexError)):
        key, pos = wire.tag(raw, 0)
        wire.skip(raw, pos, len(raw), key)
