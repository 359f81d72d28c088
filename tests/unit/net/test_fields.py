"""What may go out as a header."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.net.fields import HOP_BY_HOP, CheckedHeaders, checked, header_list_size


def test_legal_fields_pass_unchanged_and_in_order():
    fields = [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"x-a", b"1"),
        (b"x-a", b"2"),
        (b"x-e", b""),
    ]
    out = checked(fields)
    assert out == fields
    assert type(out) is CheckedHeaders


def test_names_become_lower_case():
    assert checked([(b"X-Request-Id", b"Ab")]) == [(b"x-request-id", b"Ab")]


def test_hop_by_hop_fields_go():
    assert checked([(name, b"x") for name in HOP_BY_HOP] + [(b"Connection", b"close")]) == []


def test_te_may_only_announce_trailers():
    assert checked([(b"te", b"trailers"), (b"te", b"gzip")]) == [(b"te", b"trailers")]


def test_a_line_break_cannot_make_a_second_field():
    assert checked([(b"x-a", b"1\r\nx-evil: 2"), (b"x-b", b"a\0b")]) == [(b"x-a", b"1  x-evil: 2"), (b"x-b", b"a b")]


def test_spaces_around_values_go():
    assert checked([(b"grpc-message", b" boom \t"), (b"x", b" ")]) == [(b"grpc-message", b"boom"), (b"x", b"")]


def test_impossible_names_are_dropped():
    assert checked([(b"", b"1"), (b"a b", b"1"), (b"a\r\nb", b"1"), (b":", b"1"), (b"x:y", b"1"), (b"\xff", b"")]) == []


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=20)), max_size=8))
def test_nothing_that_comes_out_can_break_a_frame(fields: list[tuple[bytes, bytes]]):
    for name, value in checked(fields):
        assert name and name == name.lower()
        assert not any(byte in b"\r\n\0 " for byte in name)
        assert not any(byte in b"\r\n\0" for byte in value)
        assert value == value.strip(b" \t")


def test_size_is_counted_as_http2_does():
    assert header_list_size([(b"abc", b"de"), (b"f", b"")]) == 3 + 2 + 32 + 1 + 32
