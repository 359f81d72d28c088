"""Requests go to the acceptor of their kind."""

from __future__ import annotations

import pytest

from shared.net.fork import Fork
from tests.support.fake_streams import FakeServerStream


@pytest.mark.parametrize(
    ("kind", "who"),
    [
        (b"application/grpc", "grpc"),
        (b"application/grpc+proto", "grpc"),
        (b"application/grpc-web", "http"),
        (b"application/json", "http"),
        (None, "http"),
    ],
)
@pytest.mark.parametrize("end", [False, True])
def test_the_content_type_decides(kind: bytes | None, who: str, end: bool):
    told = []
    fork = Fork(
        lambda *asked: told.append(("grpc", *asked)),  # type: ignore[func-returns-value, arg-type]
        lambda *asked: told.append(("http", *asked)),  # type: ignore[func-returns-value, arg-type]
    )
    headers = [(b":method", b"POST"), (b":path", b"/")]
    if kind is not None:
        headers.append((b"content-type", kind))
    stream = FakeServerStream()
    fork.accept(stream, headers, end)
    assert told == [(who, stream, headers, end)]
