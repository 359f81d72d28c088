"""Waits grow, stay within their bound and differ between two who wait."""

from __future__ import annotations

from router_node.discovery.backoff import Backoff


def test_waits_double_up_to_the_most() -> None:
    backoff = Backoff(1.0, 5.0, draw=lambda: 1.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_success_begins_again() -> None:
    backoff = Backoff(1.0, 5.0, draw=lambda: 1.0)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == 1.0


def test_a_wait_is_drawn_from_the_upper_half() -> None:
    assert Backoff(2.0, 2.0, draw=lambda: 0.0).next() == 1.0
    waits = {Backoff(2.0, 2.0).next() for _ in range(20)}
    assert len(waits) > 1 and all(1.0 <= wait <= 2.0 for wait in waits)
