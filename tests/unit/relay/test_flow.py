"""No byte of an answer is acknowledged twice, nor to a node that did not send it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router_node.relay.flow import EARLY, Flow


def test_bytes_are_acknowledged_as_they_leave() -> None:
    flow = Flow()
    flow.flowing += 100
    assert flow.left(40) == 40
    assert flow.left(60) == 60
    assert flow.flowing == 0


def test_what_was_acknowledged_early_is_not_again() -> None:
    flow = Flow()
    assert flow.early(20_000) == 20_000
    assert flow.early(20_000) == 0
    assert flow.early(30_000) == 10_000
    assert flow.whole(0) == 0  # all of the message passes on, of 40,000 bytes
    flow.flowing += 40_000
    assert flow.left(25_000) == 0
    assert flow.left(15_000) == 10_000


def test_a_client_that_does_not_take_what_it_has_is_fetched_no_more() -> None:
    flow = Flow()
    flow.flowing = 2 * EARLY
    assert flow.early(20_000) == 0
    assert flow.left(EARLY) == EARLY
    assert flow.early(20_000) == 20_000


def test_of_what_does_not_pass_on_only_the_rest_is_acknowledged() -> None:
    flow = Flow()
    assert flow.whole(12) == 12
    flow.early(8)
    assert flow.whole(12) == 4
    flow.early(20)
    assert flow.whole(12) == 0
    flow.flowing += 8
    assert flow.left(8) == 0  # said before


def test_nobody_is_told_of_what_came_from_a_node_that_is_gone() -> None:
    flow = Flow()
    flow.flowing += 100
    flow.early(50)
    flow.orphaned()
    flow.flowing += 10  # from the next one
    assert flow.left(90) == 0
    assert flow.left(20) == 10
    assert flow.whole(5) == 5


MESSAGES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.lists(st.integers(1, 100)), st.integers(0, 200)), max_size=30
)


@given(MESSAGES)
def test_every_byte_is_acknowledged_once_in_the_end(messages: list[tuple[int, int, list[int], int]]) -> None:
    """Messages of so many bytes that pass on, so many beside them, held so far before they were whole; then reads."""
    flow = Flow()
    came = acknowledged = 0
    for passes, beside, held, read in messages:
        for size in held:
            acknowledged += flow.early(min(size, passes + beside))
        came += passes + beside
        acknowledged += flow.whole(beside)
        flow.flowing += passes
        acknowledged += flow.left(min(read, flow.flowing))
        assert acknowledged <= came
    acknowledged += flow.left(flow.flowing)
    assert (acknowledged, flow.flowing, flow.ahead) == (came, 0, 0)
