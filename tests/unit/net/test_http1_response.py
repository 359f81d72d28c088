"""Heads of answers: what is in them, and what an owner cannot put there."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import exhausted, invalid
from shared.net.http1_response import CHUNKED, CLOSE, HttpDate, error_answer, given_length, head

DATE = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


def test_a_head_is_status_date_framing_and_the_owners_headers():
    made = head(200, [(b"content-type", b"a/b"), (b"x", b"")], CHUNKED, DATE)
    assert made == (b"HTTP/1.1 200 OK\r\n" + DATE + b"transfer-encoding: chunked\r\ncontent-type: a/b\r\nx: \r\n\r\n")
    assert head(499, [], b"", DATE).startswith(b"HTTP/1.1 499 Client Closed Request\r\n")
    assert head(299, [], b"", DATE).startswith(b"HTTP/1.1 299 \r\n")


@pytest.mark.parametrize("bad", [b"a\r\nx: 1", b"a\n", b"a\r", b"\0"])
def test_headers_that_would_break_out_of_their_line_are_left_out(bad: bytes):
    good = head(200, [(b"ok", b"1")], CLOSE, DATE)
    assert head(200, [(b"x", bad), (b"ok", b"1")], CLOSE, DATE) == good
    assert head(200, [(b"ok", b"1"), (bad, b"x")], CLOSE, DATE) == good
    # Two faults that would cancel out in a count of line ends.
    assert head(200, [(b"x", b"\r\n"), (b"ok", b"1"), (b"y", bad)], CLOSE, DATE) == good


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=5))
def test_no_header_list_makes_more_lines_than_headers(headers: list[tuple[bytes, bytes]]):
    made = head(200, headers, b"", DATE)
    lines = made.split(b"\r\n")
    assert len(lines) <= len(headers) + 4
    assert lines[-2:] == [b"", b""]
    assert b"" not in lines[:-2]
    assert not any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines)


def test_the_date_is_now_and_follows_the_clock(monkeypatch: pytest.MonkeyPatch):
    date = HttpDate()
    date.refresh()
    stamp = parsedate_to_datetime(date.value.decode()).timestamp()
    assert abs(stamp - time.time()) < 2
    assert date.line == b"date: " + date.value + b"\r\n"
    monkeypatch.setattr(time, "time", lambda: 0.0)
    date.refresh()
    assert date.line == DATE


def test_errors_are_openai_objects_with_the_time_to_come_back():
    headers, body = error_answer(exhausted("Full.", "QUEUE_FULL", 1.2))
    assert headers == [(b"content-type", b"application/json"), (b"retry-after", b"2")]
    assert body == b'{"error":{"message":"Full.","type":"rate_limit_error","param":null,"code":"queue_full"}}'
    assert error_answer(invalid("No."))[0] == [(b"content-type", b"application/json")]


def test_a_head_answers_length_is_taken_from_its_headers():
    assert given_length([(b"content-length", b"12")]) == b"12"
    assert given_length([(b"content-length", b"1x")]) is None
    assert given_length([]) is None
