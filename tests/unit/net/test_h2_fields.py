"""Header blocks from peers: believed as they are, with space around values cut off, or not at all."""

from __future__ import annotations

import pytest

from shared.net.h2_fields import Kind, believed
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS, Header


def ask(**changes: bytes | None) -> list[Header]:
    """A request with some pseudo-header fields changed, or left out."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": b"/x", b":authority": b"a"}
    for name, value in changes.items():
        key = b":" + name.encode()
        if value is None:
            del fields[key]
        else:
            fields[key] = value
    return list(fields.items())


@pytest.mark.parametrize(
    ("headers", "kind"), [(REQUEST, "request"), (RESPONSE, "response"), (TRAILERS, "trailers"), ([], "trailers")]
)
def test_proper_blocks_go_on_as_they_are(headers: list[Header], kind: Kind):
    assert believed(headers, kind) == tuple(headers)


def test_space_around_a_value_is_cut_off():
    assert believed([(b"grpc-message", b" boom \t")], "trailers") == ((b"grpc-message", b"boom"),)


@pytest.mark.parametrize("method", [b"CONNECT", b"GET", b"OPTIONS"])
def test_what_may_be_asked_for_depends_on_the_method(method: bytes):
    assert (believed(ask(method=method, scheme=None, path=None), "request") is not None) is (method == b"CONNECT")
    assert (believed(ask(method=method, path=b"*"), "request") is not None) is (method == b"OPTIONS")
    assert (believed(ask(method=method), "request") is not None) is (method != b"CONNECT")
    assert believed(ask(method=method, authority=None), "request") is None or method != b"CONNECT"


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        (ask(method=None), "request"),
        (ask(path=None), "request"),
        (ask(scheme=None), "request"),
        (ask(path=b""), "request"),
        (ask(path=b"x"), "request"),
        (ask(path=b"/a b"), "request"),
        (ask(authority=b"a b"), "request"),
        ([*ask(), (b":path", b"/y")], "request"),
        ([*ask(), (b":status", b"200")], "request"),
        ([*ask(), (b":protocol", b"websocket")], "request"),
        ([(b"x", b"1"), *ask()], "request"),
        ([*ask(), (b"X", b"1")], "request"),
        ([*ask(), (b"", b"1")], "request"),
        ([*ask(), (b"x y", b"1")], "request"),
        ([*ask(), (b"x", b"a\r\nb: c")], "request"),
        ([*ask(), (b"x", b"a\0")], "request"),
        ([*ask(), (b"connection", b"close")], "request"),
        ([*ask(), (b"transfer-encoding", b"chunked")], "request"),
        ([*ask(), (b"te", b"gzip")], "request"),
        ([], "response"),
        ([(b":status", b"20")], "response"),
        ([(b":status", b"2000")], "response"),
        ([(b":status", b"abc")], "response"),
        ([*RESPONSE, (b":path", b"/")], "response"),
        ([(b":status", b"200")], "trailers"),
    ],
)
def test_malformed_blocks_are_not_believed(headers: list[Header], kind: Kind):
    assert believed(headers, kind) is None
