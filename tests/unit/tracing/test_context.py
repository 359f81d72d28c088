"""W3C trace context, read as the recommendation has it, and who is sampled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.tracing.context import MAX_STATE, Sampler, parse

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01".encode()
UNSAMPLED = f"00-{TRACE}-{SPAN}-00".encode()


def test_a_traceparent_is_read() -> None:
    assert parse(SAMPLED) == (int(TRACE, 16), int(SPAN, 16), True)
    assert parse(UNSAMPLED) == (int(TRACE, 16), int(SPAN, 16), False)


def test_a_later_version_may_say_more() -> None:
    assert parse(f"01-{TRACE}-{SPAN}-03-what-is-to-come".encode()) == (int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"00",
        SAMPLED.upper(),
        SAMPLED + b"-more",
        SAMPLED + b"x",
        b"ff" + SAMPLED[2:],
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        SAMPLED[:-1],
        SAMPLED.replace(b"-", b"_"),
    ],
)
def test_what_is_no_traceparent_is_left_aside(value: bytes | None) -> None:
    assert parse(value) is None


@given(st.binary(max_size=80))
def test_no_bytes_are_an_error(value: bytes) -> None:
    found = parse(value)
    assert found is None or (found[0] and found[1])


def test_a_parents_decision_holds() -> None:
    never, always = Sampler(0.0, True), Sampler(1.0, True)
    context = never.begin(SAMPLED, b"a=b")
    assert context is not None
    assert (context.trace_id, context.parent_id, context.state) == (int(TRACE, 16), int(SPAN, 16), "a=b")
    assert context.span_id not in (0, context.parent_id)
    assert always.begin(UNSAMPLED) is None


def test_a_parents_decision_may_be_left_aside() -> None:
    assert Sampler(0.0, False).begin(SAMPLED) is None
    context = Sampler(1.0, False).begin(UNSAMPLED)
    assert context is not None and context.trace_id == int(TRACE, 16)


def test_a_share_of_new_traces_is_sampled() -> None:
    sampler = Sampler(0.25, True)
    taken = sum(sampler.begin(None) is not None for _ in range(4000))
    assert 800 < taken < 1200
    assert all(Sampler(1.0, True).begin(None) is not None for _ in range(100))
    assert not any(Sampler(0.0, True).begin(None) is not None for _ in range(100))


def test_who_may_not_begin_a_trace_continues_one_only() -> None:
    sampler = Sampler(1.0, True)
    assert sampler.begin(None, rooted=False) is None
    assert sampler.begin(SAMPLED, rooted=False) is not None


def test_state_that_is_too_long_is_not_passed_on() -> None:
    context = Sampler(1.0, True).begin(SAMPLED, b"x" * (MAX_STATE + 1))
    assert context is not None and context.state == ""


def test_a_header_names_the_caller_and_says_that_it_is_sampled() -> None:
    context = Sampler(1.0, True).begin(SAMPLED)
    assert context is not None
    assert parse(context.header(0xABC)) == (context.trace_id, 0xABC, True)
