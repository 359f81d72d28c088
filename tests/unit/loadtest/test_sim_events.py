"""Virtual time."""

from __future__ import annotations

from loadtest.sim.events import Events


def test_things_happen_in_the_order_of_their_time_and_then_of_their_making() -> None:
    events, seen = Events(), []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        events.at(when, lambda name=name: seen.append((events(), name)))
    assert events.run()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]


def test_the_past_is_now() -> None:
    events, seen = Events(5.0), []
    events.at(1.0, lambda: seen.append(events.now))
    events.run()
    assert seen == [5.0]


def test_stop_leaves_the_rest_undone() -> None:
    events = Events()
    seen: list[int] = []
    events.at(1.0, events.stop)
    events.at(2.0, seen.append, 1)
    assert events.run() and seen == []


def test_a_run_without_end_is_given_up() -> None:
    events = Events()

    def again() -> None:
        events.at(events.now + 1.0, again)

    again()
    assert not events.run(wall_seconds=0.01)
