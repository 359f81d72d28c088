"""A journal says exactly what was passed on, however the bytes came, and stops where a bound is met."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from router_node.admin.moves import MoveCounts
from router_node.relay.journal import (
    DONE,
    LUMP,
    MAX_MESSAGE,
    Journal,
    Purse,
    TunnelJournal,
    TypedJournal,
    first_charge,
)
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2

REQUEST = frame(pb.GenerateRequest(model="m", text="Hello").SerializeToString())
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=5)


def purse(most: int = 1 << 30) -> Purse:
    return Purse(most, MoveCounts())


def typed(request: bytes = REQUEST, most: int = 1 << 20, of: Purse | None = None) -> TypedJournal:
    of = of or purse()
    assert of.take(first_charge(request))
    return TypedJournal(request, most, of, 2, 3, 5)


def tunnel(most: int = 1 << 20) -> TunnelJournal:
    of = purse()
    request = frame(openai_pb2.HttpRequest(method="POST", body=b"{}").SerializeToString())
    assert of.take(first_charge(request))
    return TunnelJournal(request, most, of)


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """The data in pieces, cut at these places."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[a:b] for a, b in pairwise(places)]


@st.composite
def responses(draw: st.DrawFn) -> pb.GenerateResponse:
    out = pb.GenerateResponse(text=draw(st.text(max_size=40)), token_ids=draw(IDS))
    if draw(st.booleans()):
        out.index = draw(st.integers(0, 2**31))
        out.request_id = draw(st.text(max_size=200))
        out.logprobs.add().chosen.token = "x" * draw(st.integers(0, 300))
        out.timings.ttft_seconds = 1.5
    return out


@given(st.lists(responses(), max_size=8), st.lists(st.integers(0, 10_000), max_size=20))
def test_any_chunking_gives_the_same_whole_messages_ids_and_lengths(
    messages: list[pb.GenerateResponse], places: list[int]
) -> None:
    journal = typed()
    data = b"".join(frame(m.SerializeToString()) for m in messages)
    out = b""
    for piece in cut(data, places):
        out += journal.feed(piece)
        assert data.startswith(out)
        assert not journal.stopped
    assert out == data
    assert journal.held == 0
    assert list(journal.tokens) == [i for m in messages for i in m.token_ids]
    assert list(journal.counts) == [len(m.token_ids) for m in messages]
    assert journal.text_bytes == sum(len(m.text.encode()) for m in messages)
    assert journal.messages == len(messages)
    resumed = journal.resumed(2)
    request = pb.GenerateRequest.FromString(resumed[5:])
    assert int.from_bytes(resumed[1:5], "big") == len(resumed) - 5
    assert (request.model, request.text) == ("m", "Hello")
    assert list(request.resume.token_ids) == list(journal.tokens)
    assert list(request.resume.message_tokens) == list(journal.counts)
    assert (request.resume.text_bytes, request.resume.attempt) == (journal.text_bytes, 2)


@given(st.lists(responses(), min_size=1, max_size=4), st.integers(1, 400), st.lists(st.integers(0, 5000), max_size=9))
def test_a_message_that_is_not_whole_counts_for_nothing_and_is_forgotten(
    messages: list[pb.GenerateResponse], short: int, places: list[int]
) -> None:
    journal = typed()
    frames = [frame(m.SerializeToString()) for m in messages]
    short = 1 + short % len(frames[-1])
    data = b"".join(frames)[:-short]
    out = b"".join(journal.feed(piece) for piece in cut(data, places))
    assert out == b"".join(frames[:-1])
    assert journal.held == len(data) - len(out)
    assert journal.messages == len(messages) - 1
    journal.forget_part()
    assert journal.feed(frames[-1]) == frames[-1]
    assert list(journal.tokens) == [i for m in messages for i in m.token_ids]


@given(
    st.lists(st.tuples(st.binary(max_size=60), IDS), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_any_chunking_of_the_tunnel_gives_the_same_body_hash_and_ids(
    parts: list[tuple[bytes, list[int]]], places: list[int]
) -> None:
    journal = tunnel()
    head = openai_pb2.HttpResponse(head=openai_pb2.HttpResponseHead(status=200))
    messages = [head, *(openai_pb2.HttpResponse(body=body, token_ids=ids) for body, ids in parts)]
    data = b"".join(frame(m.SerializeToString()) for m in messages)
    body = whole = heads = b""
    for piece in cut(data, places):
        whole += journal.feed(piece)
        body += journal.take()
        heads += journal.take_head()
    said = b"".join(part for part, _ in parts)
    assert (whole, body) == (data, said)
    assert heads == head.head.SerializeToString()
    resume = openai_pb2.HttpRequest.FromString(journal.resumed(1)[5:]).resume
    assert (resume.body_bytes, resume.body_hash) == (len(said), xxhash.xxh3_64_intdigest(said))
    assert list(resume.token_ids) == [i for _, ids in parts for i in ids]
    assert [n for n in resume.message_tokens if n] == [len(ids) for _, ids in parts if ids]


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=6))
def test_garbage_is_passed_on_whole_and_never_raises(data: bytes, places: list[int]) -> None:
    for journal in (typed(), tunnel()):
        out = b""
        for piece in cut(data, places):
            out += journal.feed(piece)
            if journal.stopped:
                break
        else:
            journal.stop("over")
        assert data.startswith(out + journal.rest)


def test_ids_that_are_not_packed_are_read_too() -> None:
    journal = typed()
    journal.feed(frame(b"\x18\x05\x18\xac\x02"))
    assert list(journal.tokens) == [5, 300]


@pytest.mark.parametrize(
    "message", [b"\x1a\x05\x01", b"\x12\x7f", b"\x1a\x01\x80", b"\x18\xff\xff\xff\xff\xff\xff\x01", b"\x07"]
)
def test_a_message_that_cannot_be_read_stops_the_journal_and_leaves_no_trace(message: bytes) -> None:
    journal = typed()
    good = frame(pb.GenerateResponse(token_ids=[1]).SerializeToString())
    assert journal.feed(good + frame(message) + good) == good
    assert journal.stopped == "a message cannot be read"
    assert journal.rest == frame(message) + good
    assert list(journal.tokens) == [1]


def test_a_finish_reason_finishes() -> None:
    journal = typed()
    journal.feed(frame(pb.GenerateResponse(token_ids=[1]).SerializeToString()))
    assert not journal.finished
    journal.feed(frame(pb.GenerateResponse(finish_reason=pb.FINISH_REASON_STOP).SerializeToString()))
    assert journal.finished


def test_done_finishes_a_tunnel_and_a_finish_reason_is_kept() -> None:
    journal = tunnel()
    journal.feed(frame(openai_pb2.HttpResponse(body=b"data: {}\n\n", finish_reason="stop").SerializeToString()))
    journal.take()
    assert not journal.finished
    assert openai_pb2.HttpRequest.FromString(journal.resumed(1)[5:]).resume.finish_reason == "stop"
    journal.feed(frame(openai_pb2.HttpResponse(body=DONE).SerializeToString()))
    journal.take()
    assert journal.finished


@given(st.lists(st.integers(0, 60), max_size=6))
def test_the_first_chunk_s_time_is_found_however_it_is_cut(places: list[int]) -> None:
    body = b'data: {"id":"x","created": 1700000001,"choices":[]}\n\ndata: {"created":1700000009}\n\n'
    journal = tunnel()
    for piece in cut(body, places):
        journal.feed(frame(openai_pb2.HttpResponse(body=piece).SerializeToString()))
        journal.take()
    assert journal.created == 1_700_000_001


def test_compressed_and_oversize_messages_are_not_held() -> None:
    journal = typed()
    assert journal.feed(b"\1\0\0\0\1") == b""
    assert (journal.stopped, journal.rest) == ("a message is compressed", b"\1\0\0\0\1")
    journal = typed()
    start = b"\0" + MAX_MESSAGE.to_bytes(4, "big") + b"x" * 100
    assert journal.feed(start) == b""
    assert (journal.stopped, journal.rest) == ("a message is too large", start)


def test_too_many_tokens_stop_it_behind_the_message_that_had_them() -> None:
    journal = typed(most=3)
    two = frame(pb.GenerateResponse(token_ids=[1, 2]).SerializeToString())
    assert journal.feed(two) == two
    assert journal.feed(two + two[:3]) == two
    assert (journal.stopped, journal.rest) == ("the stream is too long", two[:3])


def test_memory_is_asked_for_as_it_is_needed_and_all_given_back() -> None:
    of = purse(first_charge(REQUEST) + LUMP)
    journal = typed(of=of)
    assert of.counts.journal_bytes == first_charge(REQUEST)
    assert of.counts.journals == 1
    many = frame(pb.GenerateResponse(token_ids=range(2100)).SerializeToString())
    assert journal.feed(many) == many
    assert of.counts.journal_bytes == first_charge(REQUEST) + LUMP
    assert journal.feed(many) == many
    assert journal.stopped == "the router's journals are full"
    assert not of.take(1)
    journal.close()
    journal.close()
    assert (of.counts.journal_bytes, of.counts.journals) == (0, 0)


def test_a_stop_from_without_hands_back_what_was_held() -> None:
    journal: Journal = typed()
    whole = frame(pb.GenerateResponse(token_ids=[1]).SerializeToString())
    journal.feed(whole[:4])
    journal.feed(whole[4:6])
    journal.stop("pinned")
    assert (journal.stopped, journal.rest, journal.held) == ("pinned", whole[:6], 0)
