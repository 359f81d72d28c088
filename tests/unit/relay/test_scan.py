"""The router reads from a first message what routes it, wherever it stands, and refuses the rest clearly."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router_node.dispatch import hash_blocks
from router_node.relay import scan
from router_node.relay.fields import Fields
from router_node.relay.settings import RelaySettings
from shared import prefix
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2

ANY = replace(RelaySettings(), max_n=2**32, max_max_tokens=2**32)
uint32 = st.integers(1, 2**32 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
words = st.text(max_size=40)

sampling = st.builds(
    pb.SamplingParams,
    max_tokens=st.none() | uint32,
    n=st.none() | st.integers(1, 300),
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


def read(scanner: Any, raw: bytes) -> Fields:
    into = Fields()
    scanner(raw, into, ANY)
    return into


def agrees(found: Fields, request: Any) -> None:
    sampling = request.sampling
    n = sampling.n if sampling.HasField("n") else 1
    assert found.model == request.model
    assert found.priority == request.priority
    assert found.n == n
    assert found.max_new_tokens == (sampling.max_tokens * n if sampling.HasField("max_tokens") else 0)


def check_generate(found: Fields, request: pb.GenerateRequest) -> None:
    agrees(found, request)
    kind = request.WhichOneof("prompt")
    if kind == "token_ids":
        assert (found.prompt_tokens, found.exact) == (len(request.token_ids.ids), True)
    elif kind == "text":
        assert found.prompt_bytes == len(request.text.encode())
    elif kind == "messages":
        assert found.prompt_bytes == sum(len(m.content) + len(m.role) for m in request.messages.messages)


@given(st.lists(generate, max_size=3), unknown, unknown)
def test_generate_is_read_whatever_the_order_and_repetition(parts, before, between):
    raw = before + between.join(p.SerializeToString() for p in parts)
    check_generate(read(scan.scan_generate, raw), pb.GenerateRequest.FromString(raw))


@given(st.lists(generate, max_size=3), unknown.filter(lambda raw: not raw.startswith(b"\x8a")))
def test_complete_merges_its_inner_requests(parts, extra):
    raw = extra.join(pb.CompleteRequest(request=p).SerializeToString() for p in parts)
    check_generate(read(scan.scan_complete, raw), pb.CompleteRequest.FromString(raw).request)


@given(st.lists(chat, max_size=3), unknown)
def test_chat_is_read_whatever_the_order_and_repetition(parts, extra):
    raw = extra + b"".join(p.SerializeToString() for p in parts)
    agrees(read(scan.scan_chat, raw), pb.ChatRequest.FromString(raw))


@given(st.lists(embed, max_size=3), unknown)
def test_embed_is_read_whatever_the_order_and_repetition(parts, extra):
    raw = b"".join(p.SerializeToString() for p in parts) + extra
    found, request = read(scan.scan_embed, raw), pb.EmbedRequest.FromString(raw)
    assert (found.model, found.priority) == (request.model, request.priority)
    assert found.prompt_bytes == sum(len(text) for text in request.inputs)


def test_an_openai_body_in_the_tunnel_is_read():
    request = openai_pb2.HttpRequest(body=b'{"model":"m","prompt":"abc","max_tokens":4,"n":2,"priority":-3}')
    found = read(scan.scan_tunnel, request.SerializeToString())
    assert (found.model, found.max_new_tokens, found.n, found.priority) == ("m", 8, 2, -3)


SCANS = [
    (scan.scan_generate, pb.GenerateRequest, generate),
    (scan.scan_complete, pb.CompleteRequest, st.builds(pb.CompleteRequest, request=generate)),
    (scan.scan_chat, pb.ChatRequest, chat),
    (scan.scan_embed, pb.EmbedRequest, embed),
]


@pytest.mark.parametrize(("scanner", "kind", "source"), SCANS)
def test_a_mutated_message_is_read_as_protobuf_reads_it_or_refused(scanner, kind, source):
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(source, st.data())
    def check(request: Any, data: st.DataObject) -> None:
        raw = bytearray(request.SerializeToString())
        for _ in range(data.draw(st.integers(0, 4))):
            if raw:
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        mutated = bytes(raw[: data.draw(st.integers(0, len(raw)))])
        try:
            found = read(scanner, mutated)
        except LayaError as error:
            assert error.code == Code.INVALID_ARGUMENT
            return
        parsed = kind.FromString(mutated)
        parsed = parsed.request if kind is pb.CompleteRequest else parsed
        assert (found.model, found.priority) == (parsed.model, parsed.priority)

    check()


@given(st.binary(max_size=120))
def test_garbage_is_read_or_refused_and_nothing_else(raw):
    for scanner in (scan.scan_generate, scan.scan_complete, scan.scan_chat, scan.scan_embed, scan.scan_tunnel):
        try:
            read(scanner, raw)
        except LayaError as error:
            assert error.code == Code.INVALID_ARGUMENT


def test_the_oracle_refuses_what_the_router_calls_malformed():
    with pytest.raises(DecodeError):
        pb.GenerateRequest.FromString(b"\x0a\x05ab")
    with pytest.raises(LayaError, match="not the protobuf message"):
        read(scan.scan_generate, b"\x0a\x05ab")


def test_what_metadata_named_stays():
    into = Fields()
    into.model, into.max_new_tokens, into.priority, into.named, into.prefix = "small", 7, -2, True, (1, 2)
    request = pb.GenerateRequest(model="big", text="x" * 2000, priority=9, sampling=pb.SamplingParams(max_tokens=100))
    scan.scan_generate(request.SerializeToString(), into, ANY)
    assert (into.model, into.max_new_tokens, into.priority, into.prefix) == ("small", 7, -2, (1, 2))
    assert into.prompt_bytes == 2000


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (pb.SamplingParams(n=0), "sampling.n"),
        (pb.SamplingParams(n=17), "sampling.n"),
        (pb.SamplingParams(max_tokens=0), "sampling.max_tokens"),
        (pb.SamplingParams(max_tokens=131_073), "sampling.max_tokens"),
    ],
)
def test_counts_of_nothing_or_above_a_cap_are_refused_by_name(sampling, param):
    request = pb.GenerateRequest(model="m", text="x", sampling=sampling)
    with pytest.raises(LayaError) as caught:
        scan.scan_generate(request.SerializeToString(), Fields(), RelaySettings())
    assert caught.value.param == param


def test_a_model_s_name_has_a_limit():
    for name in ("m" * 300, "é" * 200):
        with pytest.raises(LayaError, match="at most 256"):
            read(scan.scan_generate, pb.GenerateRequest(model=name).SerializeToString())
    assert read(scan.scan_generate, pb.GenerateRequest(model="m" * 256).SerializeToString()).model == "m" * 256


def test_prefixes_are_hashed_over_text_turns_and_packed_ids_within_bounds():
    text = "héllo " * 20_000
    found = read(scan.scan_generate, pb.GenerateRequest(text=text).SerializeToString())
    assert found.prefix == hash_blocks(text.encode()[: prefix.PREFIX_BYTES])
    turns = [pb.ChatMessage(role="user", content="x" * 700), pb.ChatMessage(role="assistant", content="y" * 700)]
    longer = [*turns, pb.ChatMessage(role="user", content="z" * 50_000)]
    raw = b"".join(turn.SerializeToString() for turn in turns)
    short = read(scan.scan_chat, pb.ChatRequest(messages=turns).SerializeToString()).prefix
    assert short == hash_blocks(raw)
    assert read(scan.scan_chat, pb.ChatRequest(messages=longer).SerializeToString()).prefix[: len(short)] == short
    as_prompt = pb.GenerateRequest(messages=pb.ChatMessages(messages=turns))
    assert read(scan.scan_generate, as_prompt.SerializeToString()).prefix == short
    ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300] * 1000))
    assert read(scan.scan_generate, ids.SerializeToString()).prefix == hash_blocks(b"\xac\x02" * 1000)


HOSTILE = {
    "empty turns": (scan.scan_chat, b"\x12\x00" * 131_072),
    "unknown fields": (scan.scan_chat, b"\x78\x01" * 131_072),
    "ids one by one": (scan.scan_generate, b"\x1a\x02\x08\x01" * 65_536),
    "the model again and again": (scan.scan_generate, b"\x0a\x01a" * 87_381),
    "groups in groups": (scan.scan_generate, b"\xfb\x06" * 131_072),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_worst_message_costs_little_time(name):
    scanner, raw = HOSTILE[name]
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        try:
            read(scanner, raw)
        except LayaError as error:
            assert error.code == Code.INVALID_ARGUMENT
        best = min(best, time.perf_counter() - start)
    assert best < 0.03  # about 4 ms on an idle core; a walk in Python takes 55


def test_a_300_byte_request_is_read_in_microseconds():
    request = pb.GenerateRequest(model="smollm2-135m-instruct", text="x" * 250, priority=3)
    request.sampling.max_tokens = 128
    request.sampling.temperature = 0.7
    raw = request.SerializeToString()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            read(scan.scan_generate, raw)
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 25e-6  # about 2 µs on an idle core; the bound leaves room for a loaded machine
