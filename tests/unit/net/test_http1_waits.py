"""How long an HTTP/1.1 connection waits for what, by a clock that the test moves."""

from __future__ import annotations

import socket

import pytest

from shared.net.api import HttpExchange
from tests.support.http1_site import GET, Bench, echo

HEAD = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
LIMITS = {"idle_timeout": 30.0, "header_timeout": 10.0, "body_timeout": 20.0, "stall_timeout": 40.0}


def bench(**more: object) -> Bench:
    return Bench(echo, **{**LIMITS, "close_timeout": 5.0, **more})


@pytest.mark.parametrize(
    ("said", "limit", "reason"),
    [
        (b"", 30.0, "http_idle"),
        (GET, 30.0, "http_idle"),
        (GET[:10], 10.0, "http_header_timeout"),
        (HEAD + b"ab", 20.0, "http_body_timeout"),
        (GET + HEAD + b"ab", 20.0, "http_body_timeout"),
    ],
)
def test_each_step_of_a_client_has_its_own_limit(said: bytes, limit: float, reason: str):
    one = bench()
    one.say(said)
    one.loop.advance(limit - 0.1)
    assert not one.reasons
    one.loop.advance(0.2)
    assert one.reasons == {reason: 1}
    one.hear()
    one.loop.advance(10.0)
    assert one.lost


def test_a_limit_counts_from_the_last_step():
    one = bench()
    for _ in range(5):
        one.loop.advance(29.0)
        one.say(GET)
        assert one.hear().startswith(b"HTTP/1.1 200 OK\r\n")
    assert not one.reasons


def test_without_an_idle_limit_a_connection_stays():
    one = bench(idle_timeout=0.0)
    one.say(GET)
    one.loop.advance(100_000.0)
    assert not one.lost and not one.reasons


def test_a_client_that_takes_nothing_is_cut_off_and_one_that_takes_a_little_is_not():
    one = bench()
    one.wire.room = 10
    one.say(GET)
    assert one.wire.full
    one.loop.advance(39.0)
    del one.wire.out[:1]
    one.loop.advance(39.0)
    assert not one.reasons
    one.loop.advance(3.0)
    assert one.reasons == {"http_write_stalled": 1} and one.wire.aborted


def test_bytes_that_leave_the_kernel_alone_are_taken_too(monkeypatch: pytest.MonkeyPatch):
    """A transport's own count stands still until a large part of the kernel's buffer is free."""
    one = bench()
    one.wire.room = 10
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(3):
            ours.send(b"x" * 4000)
        monkeypatch.setattr(one.wire, "get_extra_info", lambda name, default=None: ours)
        one.say(GET)
        assert one.wire.full
        for _ in range(3):
            one.loop.advance(39.0)
            assert len(theirs.recv(4000)) == 4000
        one.loop.advance(39.0)
        assert not one.reasons
        one.loop.advance(45.0)
        assert one.reasons == {"http_write_stalled": 1} and one.wire.aborted


def test_nothing_is_awaited_of_the_client_while_an_answer_runs():
    held: list[HttpExchange] = []
    one = Bench(held.append, **LIMITS)
    one.say(GET)
    one.loop.advance(1000.0)
    assert not one.reasons
    held[0].respond(200, [], b"late")
    assert one.hear().endswith(b"late")
    one.loop.advance(31.0)
    assert one.reasons == {"http_idle": 1}
