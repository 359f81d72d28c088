"""What passes between client and node, and which requests are refused by their headers."""

from __future__ import annotations

import pytest

from router_node.relay.headers import HeaderRules, check_path, response_for_client, trailers_for_client, trailers_only
from shared import headers as names
from shared.errors import Code, LayaError

BASE = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/laya.v1.Inference/Generate"),
    (b":authority", b"localhost:8000"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]


def _with(*extra: tuple[bytes, bytes], without: bytes = b"") -> list[tuple[bytes, bytes]]:
    return [pair for pair in BASE if pair[0] != without] + list(extra)


def test_only_listed_metadata_is_forwarded_and_credentials_stop():
    rules = HeaderRules()
    sent = _with(
        (b"authorization", b"Bearer laya-secret"),
        (b"cookie", b"a=b"),
        (b"x-unknown", b"1"),
        (b"grpc-timeout", b"1S"),
        (b"traceparent", b"00-aa-bb-01"),
        (b"user-agent", b"grpc-python/1"),
        (b"grpc-encoding", b"gzip"),
        (names.MODEL, b"m"),
        (names.SESSION, b"s"),
    )
    assert rules.check(sent)[b"authorization"] == b"Bearer laya-secret"
    assert {name for name, _ in rules.forward(sent, dict(sent))} == {
        b"grpc-timeout",
        b"traceparent",
        b"user-agent",
        b"grpc-encoding",
    }


def test_names_that_the_router_sets_never_pass_from_a_client():
    forged = [(name, b"forged") for name in sorted(names.ROUTER_SET)]
    rules = HeaderRules(frozenset((b"x-team",)))
    sent = _with(*forged, (names.PRIORITY, b"-99"), (b"x-team", b"a"))
    assert rules.forward(sent, dict(sent)) == [(b"x-team", b"a")]


def test_configured_binary_metadata_passes_as_it_is():
    rules = HeaderRules(frozenset((b"x-blob-bin",)))
    sent = _with((b"x-blob-bin", b"AAH/"), (b"x-blob-bin", b"AAA"))
    rules.check(sent)
    assert rules.forward(sent, dict(sent)) == [(b"x-blob-bin", b"AAH/"), (b"x-blob-bin", b"AAA")]


@pytest.mark.parametrize(
    ("headers", "code", "says"),
    [
        (_with((b":method", b"GET"), without=b":method"), Code.INVALID_ARGUMENT, "method is 'GET'"),
        (_with(without=b":method"), Code.INVALID_ARGUMENT, "gRPC calls use POST"),
        (_with((b"content-type", b"text/html"), without=b"content-type"), Code.INVALID_ARGUMENT, "text/html"),
        (_with((b"te", b"gzip"), without=b"te"), Code.INVALID_ARGUMENT, "trailers"),
        (_with((names.MODEL, b"a"), (names.MODEL, b"b")), Code.INVALID_ARGUMENT, "laya-model is there more than once"),
        (_with((b"authorization", b"a"), (b"authorization", b"b")), Code.INVALID_ARGUMENT, "more than once"),
    ],
)
def test_a_broken_rule_is_told_in_one_sentence(headers, code, says):
    with pytest.raises(LayaError) as caught:
        HeaderRules().check(headers)
    assert caught.value.code == code
    assert says in caught.value.message


@pytest.mark.parametrize("path", [b"/Generate", b"/a/b/c", b"//b", b"/a/", b"", b"/a/" + b"b" * 300, b"a/b"])
def test_a_path_of_another_form_names_no_method(path):
    with pytest.raises(LayaError) as caught:
        check_path(path)
    assert caught.value.code == Code.UNIMPLEMENTED
    check_path(b"/laya.v1.Inference/Generate")


def test_a_value_beyond_ascii_is_thrown_away_and_no_error():
    sent = _with((b"user-agent", b"caf\xc3\xa9"), (b"grpc-timeout", b"1S"))
    HeaderRules().check(sent)
    assert HeaderRules().forward(sent, dict(sent)) == [(b"grpc-timeout", b"1S")]


def test_content_types_of_grpc_with_a_format_are_taken_and_te_may_be_absent():
    for kind in (b"application/grpc+proto", b"application/grpc;charset=utf-8"):
        HeaderRules().check(_with((b"content-type", kind), without=b"content-type"))
    HeaderRules().check(_with(without=b"te"))


def test_response_headers_lose_hop_by_hop_and_secrets_and_gain_who_answered():
    out = response_for_client(
        [
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"connection", b"close"),
            (names.CLUSTER_TOKEN, b"secret"),
            (names.NODE, b"liar"),
            (b"x-data-bin", b"AA"),
        ],
        "n1",
        b"req-1",
        12.6e-6,
    )
    assert out == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"x-data-bin", b"AA"),
        (names.NODE, b"n1"),
        (names.REQUEST_ID, b"req-1"),
        (names.ROUTER_TIME, b"12"),
    ]


def test_trailers_keep_the_status_and_its_details():
    trailers = [(b"grpc-status", b"3"), (b"grpc-message", b"no"), (b"grpc-status-details-bin", b"AA")]
    assert trailers_for_client([*trailers, (b"keep-alive", b"1")]) == trailers


def test_an_error_is_a_whole_trailers_only_answer():
    answer = dict(trailers_only(LayaError(Code.NOT_FOUND, "MODEL_NOT_FOUND", "No such model."), b"req-1"))
    assert answer[b":status"] == b"200"
    assert answer[b"grpc-status"] == b"5"
    assert answer[names.REQUEST_ID] == b"req-1"
