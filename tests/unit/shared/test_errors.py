"""One error type, rendered for gRPC and for OpenAI clients."""

from __future__ import annotations

import base64
import json

import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, LayaError, exhausted, invalid, percent_decode, percent_encode


def test_trailers_carry_status_reason_and_retry() -> None:
    trailers = dict(exhausted("no room", "QUEUE_FULL", 1.5).grpc_trailers())
    assert trailers[b"grpc-status"] == b"8"
    raw = trailers[b"grpc-status-details-bin"]
    status = status_pb2.Status.FromString(base64.b64decode(raw + b"=" * (-len(raw) % 4)))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.reason, info.domain) == ("QUEUE_FULL", "laya")
    assert retry.retry_delay.ToMilliseconds() == 1500


def test_a_bad_field_is_named_for_both_kinds_of_client() -> None:
    error = invalid("max_tokens: must be 1 or more, not 0", "max_tokens")
    status = status_pb2.Status.FromString(error.status_proto())
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    assert bad.field_violations[0].field == "max_tokens"
    body = json.loads(error.openai_body())["error"]
    assert body["param"] == "max_tokens"
    assert body["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("code", "status"),
    [(Code.UNAUTHENTICATED, 401), (Code.RESOURCE_EXHAUSTED, 429), (Code.UNAVAILABLE, 503), (Code.NOT_FOUND, 404)],
)
def test_codes_map_to_http(code: Code, status: int) -> None:
    assert LayaError(code, "R", "m").http_status == status


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    assert exhausted("m", "R", 0.2).retry_after_header() == b"1"
    assert exhausted("m", "R", 2.1).retry_after_header() == b"3"
    assert invalid("m").retry_after_header() is None


@given(st.text(max_size=200))
def test_messages_survive_percent_encoding(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    encoded = percent_encode(text)
    assert percent_decode(encoded) == clean
    assert all(0x20 <= byte < 0x7F for byte in encoded)
    assert encoded == encoded.strip()


def test_malformed_escapes_stay_as_they_are() -> None:
    assert percent_decode(b"100% %zz %4") == "100% %zz %4"
