"""The SDK and the router hash the same prompt to the same numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router_node.relay.fields import Fields
from router_node.relay.scan import scan_chat, scan_generate
from router_node.relay.settings import RelaySettings
from shared import prefix
from shared.config import Config
from shared.pb.laya.v1 import inference_pb2 as pb

SETTINGS = RelaySettings.from_config(Config())


def test_one_number_stands_for_all_before_it() -> None:
    a, b = b"a" * 512, b"b" * 512
    assert prefix.hash_blocks(a + b)[0] == prefix.hash_blocks(a + a)[0]
    assert prefix.hash_blocks(a + b)[1] != prefix.hash_blocks(b + b)[1]
    assert prefix.hash_blocks(a + b"rest") == prefix.hash_blocks(a)


def test_a_longer_conversation_begins_like_the_shorter() -> None:
    turns = [pb.ChatMessage(role="user", content=f"turn {i} " * 100) for i in range(6)]
    short, long = prefix.of_turns(turns[:3]), prefix.of_turns(turns)
    assert len(short) > 1
    assert long[: len(short)] == short


@given(st.text(min_size=600, max_size=3000))
def test_text_hashes_as_the_router_scans_it(text: str) -> None:
    try:
        request = pb.GenerateRequest(text=text)
    except (UnicodeEncodeError, ValueError):
        return  # lone surrogates are no text
    found = Fields()
    scan_generate(request.SerializeToString(), found, SETTINGS)
    assert found.prefix == prefix.of_text(text)


def test_turns_and_ids_hash_as_the_router_scans_them() -> None:
    turns = [pb.ChatMessage(role="user", content="word " * 400), pb.ChatMessage(role="assistant", content="yes")]
    found = Fields()
    scan_chat(pb.ChatRequest(messages=turns).SerializeToString(), found, SETTINGS)
    assert found.prefix == prefix.of_turns(turns) != ()
    ids = pb.TokenIds(ids=range(5000))
    found = Fields()
    scan_generate(pb.GenerateRequest(token_ids=ids).SerializeToString(), found, SETTINGS)
    assert found.prefix == prefix.of_ids(ids) != ()


def test_the_header_reads_back() -> None:
    chain = prefix.hash_blocks(b"x" * 2048)
    assert tuple(int(h, 16) for h in prefix.to_header(chain).split(",")) == chain
