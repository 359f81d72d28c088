"""The signed record: only what a node of this cluster wrote, lately, about itself, is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.discovery import registration
from router_node.discovery.registration import RecordError, Registration, sign, verify

NOW = 1_800_000_000.0
TOKEN = b"a cluster token"


def record(**changes: object) -> Registration:
    fields: dict[str, object] = {
        "node_id": "n1",
        "boot_id": "b1",
        "address": "10.0.0.1:9000",
        "model": "smol",
        "aliases": ("small",),
        "revision": "main",
        "issued_at": NOW,
        "ttl": 8.0,
    }
    return Registration(**(fields | changes))  # type: ignore[arg-type]


def refused(raw: bytes, *, node_id: str = "n1", cluster: str = "laya", token: bytes = TOKEN, now: float = NOW) -> str:
    with pytest.raises(RecordError) as caught:
        verify(raw, node_id, cluster, token, now)
    assert caught.value.reason in registration.REASONS
    return caught.value.reason


def test_a_record_comes_back_as_it_was_signed() -> None:
    assert verify(sign(record(), "laya", TOKEN), "n1", "laya", TOKEN, NOW + 1) == record()


def test_another_token_is_foreign() -> None:
    assert refused(sign(record(), "laya", b"other")) == "foreign"
    assert refused(sign(record(), "laya", TOKEN), token=b"") == "foreign"


def test_a_record_of_another_cluster_is_foreign() -> None:
    assert refused(sign(record(), "prod", TOKEN)) == "foreign"


def test_a_record_under_another_nodes_key_is_refused() -> None:
    assert refused(sign(record(), "laya", TOKEN), node_id="n2") == "moved"


@pytest.mark.parametrize("age, reason", [(39.0, "expired"), (-31.0, "future")])
def test_a_record_of_another_time_is_refused(age: float, reason: str) -> None:
    assert refused(sign(record(), "laya", TOKEN), now=NOW + age) == reason


@pytest.mark.parametrize("age", [37.0, -29.0])
def test_clocks_may_differ_a_little(age: float) -> None:
    assert verify(sign(record(), "laya", TOKEN), "n1", "laya", TOKEN, NOW + age)


def test_an_oversize_record_is_refused_before_it_is_looked_at() -> None:
    assert refused(b"x" * (registration.MAX_RECORD + 1)) == "oversize"


def test_a_node_cannot_sign_what_no_router_would_read() -> None:
    aliases = tuple(f"{i:0200}" for i in range(60))
    with pytest.raises(RecordError, match="over 8192 bytes"):
        sign(record(aliases=aliases), "laya", TOKEN)


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": ""},
        {"node_id": "a b"},
        {"node_id": "x" * 129},
        {"boot_id": "a\nb"},
        {"address": "nowhere"},
        {"address": "host:0"},
        {"address": "host:99999"},
        {"address": "ho st:80"},
        {"model": ""},
        {"model": "a\x00b"},
        {"aliases": ("",)},
        {"aliases": ("a",) * 65},
        {"revision": "r" * 257},
        {"ttl": 0.0},
        {"ttl": 3601.0},
        {"ttl": float("nan")},
    ],
)
def test_a_senseless_field_is_refused_by_both_sides(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError) as caught:
        sign(record(**changes), "laya", TOKEN)
    assert caught.value.reason == "invalid"


def _signed(payload: bytes) -> bytes:
    return registration._signature(payload, "laya", TOKEN) + b"\n" + payload


def test_senseless_fields_are_refused_even_when_signed() -> None:
    fields = json.loads(sign(record(), "laya", TOKEN).partition(b"\n")[2])
    assert refused(_signed(json.dumps(fields | {"address": "x"}).encode())) == "invalid"
    assert refused(_signed(json.dumps(fields | {"ttl": "long"}).encode())) == "garbage"
    assert refused(_signed(b"[]")) == "garbage"


def test_fields_of_a_newer_node_are_ignored() -> None:
    fields = json.loads(sign(record(), "laya", TOKEN).partition(b"\n")[2])
    assert verify(_signed(json.dumps(fields | {"zone": "eu"}).encode()), "n1", "laya", TOKEN, NOW) == record()


@given(st.binary(max_size=300))
def test_garbage_is_refused_with_a_reason(raw: bytes) -> None:
    assert refused(raw) in ("garbage", "foreign")


@given(st.data())
def test_no_byte_of_a_record_can_be_changed(data: st.DataObject) -> None:
    raw = bytearray(sign(record(), "laya", TOKEN))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    assert refused(bytes(raw)) in ("garbage", "foreign")


def test_keys_of_the_store_carry_the_cluster() -> None:
    assert registration.node_key("prod", "n1") == "laya:prod:node:n1"
    assert registration.index_key("prod") == "laya:prod:nodes"
    assert registration.events_channel("prod") == "laya:prod:events"
