"""A request that nodes die of is refused for a while; others never are."""

from __future__ import annotations

from router_node.relay.poison import MOST, Poisons, poisonous
from shared.errors import Code


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Deaths:
    """Counts them as they come, each of a node that was sent the request after the one before."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.poisons = Poisons(60.0, self.clock)
        self.now = 0.0

    def died(self, request: bytes, node: str) -> bool:
        self.now += 2
        return self.poisons.died(request, node, self.now - 1, self.now)


def test_two_deaths_are_one_too_many() -> None:
    deaths = Deaths()
    poisons = deaths.poisons
    assert not deaths.died(b"bad", "a boot1")
    assert not poisons.known(b"bad")
    assert deaths.died(b"bad", "b boot1")
    assert poisons.known(b"bad")
    assert not poisons.known(b"good")


def test_a_node_that_came_back_and_died_again_counts_twice() -> None:
    deaths = Deaths()
    assert not deaths.died(b"bad", "a boot1")
    assert deaths.died(b"bad", "a boot2")


def test_many_requests_that_were_on_one_node_together_are_one_death() -> None:
    deaths = Deaths()
    assert not any(deaths.died(b"popular", "a boot1") for _ in range(100))


def test_nodes_that_had_the_same_request_together_are_one_death() -> None:
    poisons = Poisons(60.0, Clock())
    assert not poisons.died(b"popular", "a 1", 1.0, 5.0)
    assert not poisons.died(b"popular", "b 1", 2.0, 5.1), "it had been there before the other one died"
    assert not poisons.died(b"popular", "b 1", 5.0, 5.2), "what came from the other one, on a node that had gone"
    assert not poisons.died(b"popular", "a 1", 1.0, 5.3)
    assert poisons.died(b"popular", "c 1", 5.0, 9.0), "but it was sent here after that"


def test_a_node_that_may_never_have_had_it_is_believed_once() -> None:
    poisons = Poisons(60.0, Clock())
    assert not poisons.died(b"fast", "a 1", 1.0, 2.0, False)
    assert not poisons.died(b"fast", "b 1", 2.0, 2.1, False)
    assert poisons.died(b"fast", "c 1", 2.1, 2.2, False), "a third is enough in any case"
    assert not poisons.died(b"slow", "a 1", 1.0, 2.0, False)
    assert poisons.died(b"slow", "b 1", 2.0, 3.0, True), "it had it, and died after the first"


def test_the_nodes_of_a_request_are_bounded() -> None:
    poisons = Poisons(60.0, Clock())
    for i in range(100):
        poisons.died(b"popular", f"n{i} 1", 1.0, 2.0)
    assert not poisons.known(b"popular")


def test_a_token_clears_a_request() -> None:
    deaths = Deaths()
    poisons = deaths.poisons
    deaths.died(b"x", "a 1")
    poisons.lives(b"x")
    assert len(poisons) == 0
    assert not deaths.died(b"x", "b 1")


def test_deaths_are_forgotten_in_time() -> None:
    deaths = Deaths()
    deaths.died(b"x", "a 1")
    deaths.clock.now += 61
    assert not deaths.died(b"x", "b 1")
    assert deaths.died(b"x", "c 1")
    deaths.clock.now += 61
    assert not deaths.poisons.known(b"x")
    assert len(deaths.poisons) == 0


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    deaths = Deaths()
    poisons = deaths.poisons
    for i in range(MOST + 10):
        deaths.died(b"%d" % i, "a 1")
    assert len(poisons) == MOST
    assert not deaths.died(b"0", "b 1")
    assert deaths.died(b"%d" % (MOST + 9), "b 1")


def test_the_error_is_clean() -> None:
    error = poisonous()
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "POISONOUS")
    assert error.metadata == {"retry_safe": "false"}
