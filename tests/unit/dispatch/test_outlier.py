"""A node that fails rests, comes back on trial, and never too many of them at once."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch import Ask, Dispatcher, DispatchSettings, NodeSpec, NodeState, Report, Reservation
from router_node.dispatch.outlier import LOOK_EVERY, PROBES
from router_node.dispatch.settings import OutlierSettings


class World:
    """Nodes of one pool, a clock, and requests that end as a test wants."""

    def __init__(self, nodes: int = 4, **settings: object) -> None:
        self.now = 100.0
        outlier = OutlierSettings(**settings)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher("w", DispatchSettings(outlier=outlier), lambda: self.now, rng=random.Random(7))
        self.sequence = 0
        for i in range(nodes):
            self.dispatcher.add_node(f"n{i}", "127.0.0.1:1", NodeSpec("m", kv_capacity_tokens=100_000))
            self.dispatcher.set_link(f"n{i}", True)
            self.dispatcher.on_watch_reset(f"n{i}")
        self.report()

    def node(self, i: int) -> NodeState:
        found = self.dispatcher.node(f"n{i}")
        assert found is not None
        return found

    def report(self, boot: str = "b") -> None:
        """Every node reports."""
        self.sequence += 1
        for node in self.dispatcher.nodes():
            report = Report(
                self.sequence, boot, 100_000, 100_000, prefill_tokens_per_second=8000.0, full=True, ready=True
            )
            self.dispatcher.on_report(node.id, report)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.report()

    def send(self) -> Reservation:
        granted = self.dispatcher.submit(Ask("m", prompt_tokens=10, max_new_tokens=10), _unwanted, _unwanted)
        assert isinstance(granted, Reservation)
        return granted

    def to(self, i: int) -> Reservation:
        """A request that goes to one node."""
        others = [node.id for node in self.dispatcher.nodes() if node.id != f"n{i}"]
        granted = self.dispatcher.retry(self.send(), others)
        assert granted is not None
        return granted

    def good(self, i: int, times: int = 1, seconds: float | None = None) -> None:
        for _ in range(times):
            reservation = self.to(i)
            if seconds is not None:
                reservation.node.health.answer(seconds)
            reservation.end()

    def bad(self, i: int, times: int = 1, lost: bool = False) -> None:
        for _ in range(times):
            reservation = self.to(i)
            self.dispatcher.outliers.failed(reservation, self.now, lost)
            reservation.end()

    def ejected(self) -> list[str]:
        return [node.id for node in self.dispatcher.nodes() if node.state == "ejected"]


def _unwanted(what: object) -> None:
    raise AssertionError(what)


def test_failures_in_a_row_eject_and_a_success_between_them_does_not() -> None:
    world = World()
    world.bad(1, 4)
    world.good(1)
    world.bad(1, 4)
    assert world.ejected() == []
    world.bad(1)
    assert world.ejected() == ["n1"]
    assert {world.send().node.id for _ in range(200)} == {"n0", "n2", "n3"}
    assert world.dispatcher.outliers.ejected_total == 1


def test_after_its_rest_it_is_tried_one_request_at_a_time_and_then_trusted() -> None:
    world = World()
    world.bad(1, 5)
    world.wait(4.0)
    assert world.ejected() == ["n1"]
    world.wait(2.0)
    assert world.ejected() == [] and world.node(1).health.probing
    trial = world.to(1)
    assert all(world.send().node.id != "n1" for _ in range(50))
    trial.end()
    for _ in range(PROBES - 1):
        world.to(1).end()
    world.wait(1.0)
    assert not world.node(1).health.probing
    world.to(1)
    world.to(1)  # two at once again


def test_a_failed_trial_ejects_again_and_for_longer() -> None:
    world = World()
    world.bad(1, 5)
    rests = []
    for _ in range(5):
        rests.append(world.node(1).health.until - world.now)
        world.wait(rests[-1] + 0.1)
        assert world.node(1).health.probing
        world.bad(1)
        assert world.ejected() == ["n1"]
    assert all(later > 1.4 * before for before, later in pairwise(rests[:4]))
    assert max(rests) <= 66.1


def test_a_share_of_failures_above_the_others_ejects() -> None:
    world = World(consecutive_failures=1000)
    for _ in range(20):
        for i in range(4):
            world.good(i)
        world.bad(1)
    world.wait(LOOK_EVERY)
    assert world.ejected() == ["n1"]
    assert "50%" in world.node(1).health.why


def test_a_pool_that_fails_as_a_whole_ejects_nobody_for_its_share() -> None:
    world = World(consecutive_failures=1000)
    for _ in range(30):
        for i in range(4):
            world.good(i)
            world.bad(i)
    world.wait(LOOK_EVERY)
    assert world.ejected() == []


def test_first_tokens_far_later_than_the_others_eject() -> None:
    world = World()
    for i in range(4):
        world.good(i, 30, seconds=5.0 if i == 2 else 0.1)
    world.wait(LOOK_EVERY)
    assert world.ejected() == ["n2"] and "first tokens" in world.node(2).health.why


def test_slowness_that_all_share_ejects_nobody() -> None:
    world = World()
    for i in range(4):
        world.good(i, 30, seconds=5.0 + i)
    world.wait(LOOK_EVERY)
    assert world.ejected() == []


def test_one_lost_connection_is_one_failure_whatever_it_took_down() -> None:
    world = World()
    for _ in range(3):
        lost = [world.to(1) for _ in range(20)]
        for reservation in lost:
            world.dispatcher.outliers.failed(reservation, world.now, True)
            reservation.end()
        world.now += 1.0
    assert world.node(1).health.failed == 3 and world.ejected() == []


def test_clients_that_leave_say_nothing() -> None:
    world = World()
    for _ in range(4):
        world.bad(1)
        reservation = world.to(1)
        world.dispatcher.outliers.neutral(reservation)
        reservation.end()
    world.bad(1)
    assert world.ejected() == ["n1"]  # and so they do not interrupt a row of failures


def test_a_request_is_judged_once() -> None:
    world = World()
    reservation = world.to(1)
    for _ in range(9):
        world.dispatcher.outliers.failed(reservation, world.now)
    assert world.node(1).health.failed == 1


def test_another_process_starts_with_a_clean_slate() -> None:
    world = World()
    world.bad(1, 5)
    assert world.ejected() == ["n1"]
    world.report("another boot")
    assert world.ejected() == []
    world.bad(1, 4)
    assert world.ejected() == []


def test_it_can_be_switched_off() -> None:
    world = World(enabled=False)
    world.bad(1, 50)
    world.wait(LOOK_EVERY)
    assert world.ejected() == []


def test_a_health_service_that_says_no_keeps_requests_away() -> None:
    world = World(2)
    world.dispatcher.set_serving("n0", False)
    assert world.node(0).state == "closed"
    assert {world.send().node.id for _ in range(30)} == {"n1"}
    world.dispatcher.set_serving("n0", True)
    assert {world.send().node.id for _ in range(60)} == {"n0", "n1"}


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0, 3)), max_size=120))
def test_never_more_than_the_ceiling_rest(nodes: int, steps: list[tuple[int, bool, float]]) -> None:
    world = World(nodes, consecutive_failures=1)
    for i, fails, seconds in steps:
        world.wait(seconds)
        node = world.node(i % nodes)
        if node.room > 0:
            granted = world.dispatcher.retry(world.send(), [n.id for n in world.dispatcher.nodes() if n is not node])
            if granted is not None:
                if fails:
                    world.dispatcher.outliers.failed(granted, world.now)
                granted.end()
        resting = [n for n in world.dispatcher.nodes() if n.health.ejected or n.health.probing]
        assert len(resting) <= nodes // 2
        assert world.dispatcher.ready
