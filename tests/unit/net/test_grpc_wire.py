"""gRPC's framing, time limits and status, by calling them."""

from __future__ import annotations

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, LayaError, exhausted, invalid
from shared.net.grpc_wire import (
    Deframer,
    decode_bin,
    encode_bin,
    error_from_reset,
    error_from_response,
    error_from_trailers,
    format_timeout,
    frame,
    is_grpc,
    is_grpc_type,
    parse_timeout,
)

LIMIT = 1000


def fails(code: Code, *chunks: bytes, encoding: bytes = b"identity") -> str:
    deframer = Deframer(LIMIT, encoding)
    with pytest.raises(LayaError) as caught:
        for chunk in chunks:
            deframer.feed(chunk)
        deframer.finish()
    assert caught.value.code == code
    return caught.value.message


def test_a_frame_is_flag_length_and_message():
    assert frame(b"abc") == b"\0\0\0\0\3abc"
    assert frame(b"", compressed=True) == b"\1\0\0\0\0"
    assert frame(b"x" * 70_000)[:5] == b"\0\0\1\x11p"


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=50).map(frame),
        st.binary(max_size=200).map(lambda body: frame(gzip.compress(body), True)),
        st.just(frame(b"not gzip", True)),
        st.just(frame(gzip.compress(b"x" * (LIMIT + 1)), True)),
        st.just(frame(b"x" * (LIMIT + 1))),
        st.just(b"\2\0\0\0\0"),
        st.binary(max_size=7),
    ),
    max_size=6,
)


def run(chunks: list[bytes]) -> tuple[list[bytes], int, str]:
    deframer = Deframer(LIMIT, b"gzip")
    out: list[bytes] = []
    try:
        for chunk in chunks:
            out += deframer.feed(chunk)
    except LayaError as error:
        return out, 0, str(error)
    return out, deframer.pending, ""


@given(PIECES, st.lists(st.integers(0, 3000), max_size=30))
def test_messages_do_not_depend_on_how_the_bytes_are_cut(pieces: list[bytes], at: list[int]):
    data = b"".join(pieces)
    edges = [0, *sorted(min(i, len(data)) for i in at), len(data)]
    parts = run([data[a:b] for a, b in itertools.pairwise(edges)])
    whole = run([data])
    if whole[2]:
        # A faulty message may share a read with good ones before it, which are then not told.
        assert parts[2] == whole[2]
    else:
        assert parts == whole


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 7))
def test_what_is_framed_comes_out_again(messages: list[bytes], step: int):
    data = b"".join(map(frame, messages))
    deframer = Deframer(LIMIT)
    out: list[bytes] = []
    for i in range(0, len(data), step):
        out += deframer.feed(data[i : i + step])
    assert out == messages
    deframer.finish()
    assert deframer.pending == 0


def test_a_large_message_in_small_pieces_is_held_once():
    body = bytes(8 << 20)
    data = frame(body) + frame(b"next")
    deframer = Deframer(8 << 20)
    out: list[bytes] = []
    for i in range(0, len(data), 16_384):
        out += deframer.feed(data[i : i + 16_384])
        assert deframer.pending <= len(body) + 5
    assert out == [body, b"next"]


def test_a_message_over_the_limit_is_refused_by_its_head():
    assert "1001 bytes" in fails(Code.RESOURCE_EXHAUSTED, b"\0\0\0\3\xe9")
    assert "1000 bytes" in fails(Code.RESOURCE_EXHAUSTED, b"\0\xff\xff\xff\xff")
    assert Deframer(LIMIT).feed(frame(b"x" * LIMIT)) == [b"x" * LIMIT]


def test_inflation_is_bounded_and_checked():
    bomb = gzip.compress(bytes(10 << 20))
    assert len(bomb) < 20_000
    deframer = Deframer(20_000, b"gzip")
    with pytest.raises(LayaError) as caught:
        deframer.feed(frame(bomb, True))
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert caught.value.http_status == 413

    assert Deframer(LIMIT, b"gzip").feed(frame(gzip.compress(b"x" * LIMIT), True)) == [b"x" * LIMIT]
    assert Deframer(LIMIT, b"deflate").feed(frame(zlib.compress(b"abc"), True)) == [b"abc"]
    assert Deframer(LIMIT, b"gzip").feed(frame(b"plain")) == [b"plain"]
    good = gzip.compress(b"abc")
    for bad in (b"noise", b"", good[:-1], good + b"more", zlib.compress(b"abc")):
        fails(Code.INVALID_ARGUMENT, frame(bad, True), encoding=b"gzip")


def test_faulty_frames_are_refused():
    fails(Code.INVALID_ARGUMENT, frame(gzip.compress(b"abc"), True))  # no encoding was declared
    fails(Code.INVALID_ARGUMENT, b"\2\0\0\0\0")
    fails(Code.INVALID_ARGUMENT, frame(b"abc")[:-1])
    fails(Code.INVALID_ARGUMENT, b"\0\0")
    with pytest.raises(LayaError) as caught:
        Deframer(LIMIT, b"snappy")
    assert caught.value.code == Code.UNIMPLEMENTED
    assert "'snappy'" in caught.value.message


def test_time_limits_in_every_unit():
    assert parse_timeout(b"2H") == 7200
    assert parse_timeout(b"3M") == 180
    assert parse_timeout(b"5S") == 5
    assert parse_timeout(b"250m") == pytest.approx(0.25)
    assert parse_timeout(b"99999999u") == pytest.approx(99.999999)
    assert parse_timeout(b"1n") == pytest.approx(1e-9)
    assert parse_timeout(b"0m") == 0
    for bad in (b"", b"S", b"1", b"1s", b"-1S", b"+1S", b"1.5S", b"123456789S", b" 1S", b"1S ", b"\xb2S", b"1_0S"):
        with pytest.raises(LayaError) as caught:
            parse_timeout(bad)
        assert caught.value.code == Code.INVALID_ARGUMENT


@given(st.floats(1e-8, 1e11))
def test_a_time_limit_survives_the_wire_without_growing(seconds: float):
    value = format_timeout(seconds)
    assert len(value) <= 9
    back = parse_timeout(value)
    assert back <= seconds * (1 + 1e-9)
    assert back >= seconds * (1 - 1e-5) - 1e-9


def test_extreme_time_limits_are_written_too():
    assert format_timeout(0) == format_timeout(-1) == b"0n"
    assert format_timeout(1e300) == format_timeout(float("inf")) == b"99999999H"


def test_content_types_of_grpc_and_no_others():
    for good in (
        b"application/grpc",
        b"application/grpc+proto",
        b"Application/GRPC;charset=x",
        b"application/grpc+json",
    ):
        assert is_grpc_type(good)
        assert is_grpc([(b":path", b"/"), (b"content-type", good)])
    for bad in (b"", b"application/json", b"application/grpc-web", b"application/grpc-web+proto", b"application/grpcx"):
        assert not is_grpc_type(bad)
        assert not is_grpc([(b"content-type", bad)])
    assert not is_grpc([])


@given(st.binary(max_size=60))
def test_binary_metadata_survives_with_and_without_padding(value: bytes):
    assert decode_bin(encode_bin(value)) == value
    assert b"=" not in encode_bin(value)
    assert decode_bin(encode_bin(value) + b"=" * (-len(encode_bin(value)) % 4)) == value


def test_binary_metadata_that_is_not_base64_is_refused():
    for bad in (b"a", b"!!!!", b"ab=c", b"\xff\xff"):
        with pytest.raises(LayaError):
            decode_bin(bad)


def test_trailers_carry_an_error_there_and_back():
    for sent in (
        exhausted("The queue is full.", "QUEUE_FULL", 1.5),
        invalid("temperature is 9: at most 2.", "temperature"),
        LayaError(Code.NOT_FOUND, "MODEL_NOT_FOUND", "No such model: é % \n", metadata={"model": "x"}),
    ):
        got = error_from_trailers(sent.grpc_trailers())
        assert got is not None
        assert (got.code, got.reason, got.message) == (sent.code, sent.reason, sent.message)
        assert (got.retry_after, got.param, got.metadata) == (sent.retry_after, sent.param, sent.metadata)


def test_trailers_without_details_or_sense_still_say_something():
    assert error_from_trailers([(b"grpc-status", b"0")]) is None

    def code(*trailers: tuple[bytes, bytes]) -> Code:
        error = error_from_trailers(list(trailers))
        assert error is not None
        assert error.message
        return error.code

    assert code((b"grpc-status", b"14")) == Code.UNAVAILABLE
    assert code((b"grpc-status", b"5"), (b"grpc-message", b"no%20such")) == Code.NOT_FOUND
    assert code((b"grpc-status", b"99")) == Code.UNKNOWN
    assert code((b"grpc-status", b"x")) == Code.UNKNOWN
    assert code() == Code.UNKNOWN
    for details in (b"!", b"AAAA", b"CAUSA2FiYw"):
        assert code((b"grpc-status", b"3"), (b"grpc-status-details-bin", details)) == Code.INVALID_ARGUMENT


def test_answers_that_are_not_grpc_are_errors():
    good = [(b":status", b"200"), (b"content-type", b"application/grpc+proto")]
    assert error_from_response(good) is None
    assert error_from_response([(b":status", b"200"), (b"grpc-status", b"5")]) is None
    for status, code in ((b"404", Code.UNIMPLEMENTED), (b"503", Code.UNAVAILABLE), (b"418", Code.UNKNOWN)):
        error = error_from_response([(b":status", status)])
        assert error is not None
        assert error.code == code
        assert status.decode() in error.message
    error = error_from_response([(b":status", b"200"), (b"content-type", b"text/html")])
    assert error is not None
    assert "text/html" in error.message


def test_resets_have_canonical_codes():
    assert error_from_reset(7, unprocessed=True).code == Code.UNAVAILABLE
    assert error_from_reset(8).reason == "NODE_LOST"
    assert error_from_reset(0xB).code == Code.RESOURCE_EXHAUSTED
    assert error_from_reset(0xC).code == Code.PERMISSION_DENIED
    for other in (0, 1, 2, 3, 99):
        assert error_from_reset(other).code == Code.INTERNAL
