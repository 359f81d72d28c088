"""What a router says of a stream that another node began, and how an answer is made to fit what the client has."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from inference_node import resume
from inference_node.call import Call
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2 as pb

ROUTER = Call({b"laya-resume": b"1"}, "r")
CLIENT = Call({}, "r")


def message(**fields: Any) -> pb.Resume:
    return pb.Resume(**{"token_ids": [5, 6, 7], "message_tokens": [1, 0, 2], **fields})


def read(**fields: Any) -> resume.Resumed:
    found = resume.taken(message(**fields), ROUTER)
    assert found is not None
    return found


def test_tokens_are_parted_as_the_messages_were_and_empty_ones_do_not_count():
    assert read().past.parts == [[5], [6, 7]]
    assert read().past.tokens == [5, 6, 7] and read().delivered == 3
    assert read().begun
    assert not read(token_ids=[], message_tokens=[]).begun
    assert read(token_ids=[], message_tokens=[0]).begun


@pytest.mark.parametrize(
    ("sent", "call"),
    [(message(), CLIENT), (None, ROUTER), (message(message_tokens=[1]), ROUTER)],
    ids=["from a client", "announced and absent", "sums do not agree"],
)
def test_what_no_router_would_send_is_refused(sent: pb.Resume | None, call: Call):
    with pytest.raises(LayaError) as e:
        resume.taken(sent, call)
    assert e.value.code == Code.INVALID_ARGUMENT


def test_a_request_of_its_own_resumes_nothing():
    assert resume.taken(None, CLIENT) is None
    assert resume.read(pb.GenerateRequest(), CLIENT) is None


def test_what_is_left_is_the_rest_and_nothing_after_the_end():
    assert resume.left(10, read()) == 7
    assert resume.left(3, read()) == 0
    assert resume.left(10, read(finish_reason="stop")) == 0
    with pytest.raises(LayaError, match="allows 2"):
        resume.left(2, read())


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6), st.data())
def test_an_answer_in_any_pieces_gives_exactly_the_rest(body: bytes, cuts: list[int], data: st.DataObject):
    had = data.draw(st.integers(0, len(body)))
    suppressor = resume.Suppressor(read(body_bytes=had, body_hash=xxhash.xxh3_64_intdigest(body[:had])))
    at, out = 0, b""
    for cut in sorted(min(cut, len(body)) for cut in [*cuts, len(body)]):
        out += suppressor.feed(body[at:cut])
        at = cut
    suppressor.end()
    assert out == body[had:]
    assert suppressor.passed


@given(st.binary(min_size=1, max_size=40), st.data())
def test_an_answer_that_differs_gives_nothing(body: bytes, data: st.DataObject):
    had = data.draw(st.integers(1, len(body)))
    at = data.draw(st.integers(0, had - 1))
    other = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
    suppressor = resume.Suppressor(read(body_bytes=had, body_hash=xxhash.xxh3_64_intdigest(body[:had])))
    with pytest.raises(LayaError) as e:
        suppressor.feed(other)
    assert (e.value.code, e.value.reason) == (Code.UNAVAILABLE, "RESUME_INEXACT")


def test_an_answer_that_ends_too_early_is_inexact():
    suppressor = resume.Suppressor(read(body_bytes=5, body_hash=1))
    assert suppressor.feed(b"1234") == b"" and not suppressor.passed
    with pytest.raises(LayaError, match="1 bytes before"):
        suppressor.end()


def test_the_time_is_rewritten_in_each_event_and_nowhere_in_a_text():
    suppressor = resume.Suppressor(read(created=7))
    said = rb'data: {"id":"a","created":99,"text":"\"created\":99 \ndata: {\"created\":99"}' + b"\n\n"
    assert suppressor.feed(said + said) == said.replace(b'"created":99,', b'"created":7,') * 2
    assert suppressor.feed(b'data: {"error":{}}\n\ndata: [DONE]\n\n') == b'data: {"error":{}}\n\ndata: [DONE]\n\n'


def test_without_a_time_nothing_is_rewritten():
    assert resume.Suppressor(read()).feed(b'data: {"created":99}\n\n') == b'data: {"created":99}\n\n'
