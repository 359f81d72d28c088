"""Reservations end exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch import Ask, NodeSpec, NodeState, Reservation
from router_node.dispatch.reservations import count


def node() -> NodeState:
    return NodeState("n", "n:1", NodeSpec("m"), 0, 1)


def reserve(on: NodeState, number: int, ended: list[Reservation], tokens: int = 160, prompt: int = 100) -> Reservation:
    return Reservation(b"w-%x" % number, Ask("m"), (on, 0, "headroom", False), tokens, prompt, ended.append)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["end", "count", "count text", "make"])), max_size=80))
def test_sums_are_those_of_the_reservations_held(events: list[tuple[int, str]]) -> None:
    on = node()
    ended: list[Reservation] = []
    made: dict[int, Reservation] = {}
    held: dict[int, tuple[int, int]] = {}
    for number, event in events:
        if event == "make":
            if number not in made:
                tokens, prompt = 16 * (number + 1), number
                made[number] = reserve(on, number, ended, tokens, prompt)
                held[number] = (tokens, prompt)
        elif event == "end":
            if number in made:
                made[number].end()
                held.pop(number, None)
        else:
            dispatch_id = b"w-%x" % number
            counted = count(on, [dispatch_id.decode() if event == "count text" else dispatch_id, b"other-1"])
            assert counted == (number in held)
            held.pop(number, None)
        assert on.reserved_tokens == sum(tokens for tokens, _ in held.values())
        assert on.reserved_prompt_tokens == sum(prompt for _, prompt in held.values())
        assert set(on.uncounted) == {b"w-%x" % each for each in held}
        assert all(reservation.held == (each in held) for each, reservation in made.items())


def test_end_tells_its_owner_once_and_only_if_it_freed_something() -> None:
    on = node()
    ended: list[Reservation] = []
    first, second = reserve(on, 1, ended), reserve(on, 2, ended)
    first.end()
    first.end()
    assert ended == [first] and first.ended
    count(on, ["w-2"])
    second.end()
    assert ended == [first] and second.ended and not second.held


def test_ids_that_mean_nothing_are_nothing() -> None:
    on = node()
    kept = reserve(on, 1, [])
    assert count(on, ["", "w-", "w-11", "ü-1", b"\xff", "W-1"]) == 0
    assert kept.held and on.reserved_tokens == kept.tokens


def test_reservation_says_why_its_node_was_chosen() -> None:
    on = node()
    reservation = Reservation(b"w-1", Ask("m"), (on, 42, "session", True), 160, 60, lambda _: None)
    assert (reservation.expected_cached, reservation.reason, reservation.guessed) == (42, "session", True)
    assert reservation.node is on and reservation.waited == 0.0
