"""A request that nodes die of is refused for a while; others never are."""

from __future__ import annotations

from router_node.relay.poison import MOST, Poisons, poisonous
from shared.errors import Code


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_two_deaths_are_one_too_many() -> None:
    poisons = Poisons(60.0, Clock())
    assert not poisons.died(b"bad", "a boot1")
    assert not poisons.known(b"bad")
    assert poisons.died(b"bad", "b boot1")
    assert poisons.known(b"bad")
    assert not poisons.known(b"good")


def test_a_node_that_came_back_and_died_again_counts_twice() -> None:
    poisons = Poisons(60.0, Clock())
    assert not poisons.died(b"bad", "a boot1")
    assert poisons.died(b"bad", "a boot2")


def test_many_requests_that_were_on_one_node_together_are_one_death() -> None:
    poisons = Poisons(60.0, Clock())
    assert not any(poisons.died(b"popular", "a boot1") for _ in range(100))


def test_a_token_clears_a_request() -> None:
    poisons = Poisons(60.0, Clock())
    poisons.died(b"x", "a 1")
    poisons.lives(b"x")
    assert len(poisons) == 0
    assert not poisons.died(b"x", "b 1")


def test_deaths_are_forgotten_in_time() -> None:
    clock = Clock()
    poisons = Poisons(60.0, clock)
    poisons.died(b"x", "a 1")
    clock.now += 61
    assert not poisons.died(b"x", "b 1")
    assert poisons.died(b"x", "c 1")
    clock.now += 61
    assert not poisons.known(b"x")
    assert len(poisons) == 0


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    poisons = Poisons(60.0, Clock())
    for i in range(MOST + 10):
        poisons.died(b"%d" % i, "a 1")
    assert len(poisons) == MOST
    assert not poisons.died(b"0", "b 1")
    assert poisons.died(b"%d" % (MOST + 9), "b 1")


def test_the_error_is_clean() -> None:
    error = poisonous()
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "POISONOUS")
    assert error.metadata == {"retry_safe": "false"}
