"""The scanner reads from any message what protobuf reads from it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router_node.relay import scan, wire
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2

uint32 = st.integers(0, 2**32 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
words = st.text(max_size=40)

sampling = st.builds(
    pb.SamplingParams,
    max_tokens=st.none() | uint32,
    n=st.none() | st.integers(0, 300),
    temperature=st.none() | st.floats(0, 2, width=32),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(words, max_size=3),
    stop_token_ids=st.lists(uint32, max_size=4),
    logit_bias=st.dictionaries(uint32, st.floats(-1, 1, width=32), max_size=2),
    ignore_eos=st.none() | st.booleans(),
)
message = st.builds(pb.ChatMessage, role=st.sampled_from(["user", "system"]), content=words, name=words)
structured = st.builds(pb.StructuredOutput, regex=words)
generate = st.one_of(
    *[
        st.builds(
            pb.GenerateRequest,
            model=words,
            sampling=st.none() | sampling,
            structured=st.none() | structured,
            priority=int32,
            cache_salt=words,
            **prompt,
        )
        for prompt in (
            {},
            {"text": words},
            {"token_ids": st.builds(pb.TokenIds, ids=st.lists(uint32, max_size=20))},
            {"messages": st.builds(pb.ChatMessages, messages=st.lists(message, max_size=4))},
        )
    ]
)
chat = st.builds(
    pb.ChatRequest,
    model=words,
    messages=st.lists(message, max_size=4),
    sampling=st.none() | sampling,
    structured=st.none() | structured,
    priority=int32,
    template_kwargs_json=words,
)
embed = st.builds(pb.EmbedRequest, model=words, inputs=st.lists(words, max_size=4), dimensions=uint32, priority=int32)
# Fields the schema does not know, groups among them, as a later version might send.
unknown = st.sampled_from(
    [
        b"",
        b"\xf8\x06\x01",  # varint, field 111
        b"\xfa\x06\x03abc",  # bytes
        b"\xfd\x06abcd",  # fixed32
        b"\xf9\x06abcdefgh",  # fixed64
        b"\xfb\x06\xfb\x06\x08\x01\xfc\x06\xfc\x06",  # a group in a group
        b"\x0d\x00\x00\x00\x00",  # field 1 with another wire type
        b"\x32\x02\x08\x01",  # field 6 as bytes, not varint
        b"\x8a\x00\x01x",  # field 1 with an overlong tag
    ]
)


def _optional(holder: Any, field: str) -> int | None:
    return getattr(holder, field) if holder.HasField(field) else None


def _agrees(found: scan.Scan, request: Any, prompt: bytes) -> None:
    assert found.model.decode() == request.model
    assert found.priority == request.priority
    assert found.max_tokens == _optional(request.sampling, "max_tokens")
    assert found.n == _optional(request.sampling, "n")
    assert found.prompt == prompt[: scan.PREFIX_BYTES]
    assert found.prompt_bytes == len(prompt)


def _prompt(request: Any) -> bytes:
    which = request.WhichOneof("prompt")
    if which == "text":
        return str(request.text).encode()
    if which == "messages":
        return b"".join(m.SerializeToString() for m in request.messages.messages)
    return b""


def _check_generate(found: scan.Scan, request: pb.GenerateRequest) -> None:
    if request.WhichOneof("prompt") == "token_ids":
        assert found.token_ids == len(request.token_ids.ids)
        prompt = found.prompt
        assert found.prompt_bytes == len(prompt)
    else:
        prompt = _prompt(request)
    _agrees(found, request, prompt)


@given(st.lists(generate, max_size=3), unknown, unknown)
def test_generate_reads_as_protobuf_does_whatever_the_order_and_repetition(parts, before, between):
    raw = before + between.join(p.SerializeToString() for p in parts)
    _check_generate(scan.scan_generate(raw), pb.GenerateRequest.FromString(raw))


@given(st.lists(generate, max_size=3), unknown.filter(lambda raw: not raw.startswith(b"\x8a")))
def test_complete_merges_its_inner_requests(parts, extra):
    raw = extra.join(pb.CompleteRequest(request=p).SerializeToString() for p in parts)
    _check_generate(scan.scan_complete(raw), pb.CompleteRequest.FromString(raw).request)


@given(st.lists(chat, max_size=3), unknown)
def test_chat_reads_as_protobuf_does(parts, extra):
    raw = extra + b"".join(p.SerializeToString() for p in parts)
    request = pb.ChatRequest.FromString(raw)
    _agrees(scan.scan_chat(raw), request, b"".join(m.SerializeToString() for m in request.messages))


@given(st.lists(embed, max_size=3), unknown)
def test_embed_reads_as_protobuf_does(parts, extra):
    raw = b"".join(p.SerializeToString() for p in parts) + extra
    found, request = scan.scan_embed(raw), pb.EmbedRequest.FromString(raw)
    assert found.model.decode() == request.model
    assert found.priority == request.priority
    assert found.prompt_bytes == sum(len(t.encode()) for t in request.inputs)


@given(words, words, st.binary(max_size=200))
def test_http_request_gives_method_target_and_body(method, target, body):
    raw = openai_pb2.HttpRequest(method=method, target=target, body=body).SerializeToString()
    raw = (
        openai_pb2.HttpRequest(method="GET", headers=[openai_pb2.HttpHeader(name="a", value="b")]).SerializeToString()
        + raw
    )
    want = openai_pb2.HttpRequest.FromString(raw)
    assert scan.scan_http(raw) == (want.method.encode(), want.target.encode(), want.body)


SCANS = [
    (scan.scan_generate, pb.GenerateRequest, generate),
    (scan.scan_complete, pb.CompleteRequest, st.builds(pb.CompleteRequest, request=generate)),
    (scan.scan_chat, pb.ChatRequest, chat),
    (scan.scan_embed, pb.EmbedRequest, embed),
]


@pytest.mark.parametrize(("read", "kind", "source"), SCANS)
def test_a_mutated_message_is_refused_only_where_protobuf_refuses_it(read, kind, source):
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(source, st.data())
    def check(request: Any, data: st.DataObject) -> None:
        raw = bytearray(request.SerializeToString())
        for _ in range(data.draw(st.integers(0, 4))):
            if raw:
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        raw = raw[: data.draw(st.integers(0, len(raw)))]
        raw_bytes = bytes(raw)
        try:
            found = read(raw_bytes)
        except wire.Malformed:
            with pytest.raises(DecodeError):
                kind.FromString(raw_bytes)
            return
        try:
            parsed = kind.FromString(raw_bytes)
        except DecodeError:
            return  # text that is not UTF-8, or a nested message the scanner has no use for
        parsed = parsed.request if kind is pb.CompleteRequest else parsed
        assert found.model.decode() == parsed.model
        assert found.priority == parsed.priority

    check()


@given(st.binary(max_size=120))
def test_garbage_never_raises_anything_but_malformed(raw):
    for read in (scan.scan_generate, scan.scan_complete, scan.scan_chat, scan.scan_embed, scan.scan_http):
        try:
            read(raw)
        except wire.Malformed as error:
            assert str(error)


def test_a_oneof_prompt_keeps_only_its_last_member():
    text = pb.GenerateRequest(text="abcdefgh").SerializeToString()
    ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 300, 70000])).SerializeToString()
    assert scan.scan_generate(text + ids).token_ids == 3
    assert scan.scan_generate(ids + ids).token_ids == 6
    assert scan.scan_generate(ids + text + ids).token_ids == 3
    assert scan.scan_generate(ids + text).prompt == b"abcdefgh"


def test_unpacked_token_ids_count_too():
    inner = b"\x08\x01\x08\xac\x02\x0a\x02\x05\x06"
    raw = b"\x1a" + bytes([len(inner)]) + inner
    assert list(pb.GenerateRequest.FromString(raw).token_ids.ids) == [1, 300, 5, 6]
    assert scan.scan_generate(raw).token_ids == 4


def test_the_prompt_kept_for_hashing_is_bounded():
    request = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="x" * 30_000) for _ in range(5)])
    found = scan.scan_chat(request.SerializeToString())
    assert len(found.prompt) == scan.PREFIX_BYTES
    assert found.prompt_bytes > 150_000


def test_groups_nested_too_deeply_are_refused():
    with pytest.raises(wire.Malformed, match="nested too deeply"):
        scan.scan_generate(b"\xfb\x06" * 5000)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x30",
        b"\x30" + b"\xff" * 11,
        b"\x00\x01",
        b"\x07",
        b"\x22\x02\x08",
        b"\x0a\xff\xff\xff\xff\xff",
    ],
)
def test_a_message_cut_short_or_broken_is_malformed(raw):
    with pytest.raises(wire.Malformed):
        scan.scan_generate(raw)


def test_a_300_byte_request_is_scanned_in_microseconds():
    request = pb.GenerateRequest(model="smollm2-135m-instruct", text="x" * 250, priority=3)
    request.sampling.max_tokens = 128
    request.sampling.temperature = 0.7
    raw = request.SerializeToString()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            scan.scan_generate(raw)
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 25e-6  # about 3.5 µs on an idle core; the bound leaves room for a loaded machine
