"""The collector rests while a large table is made."""

from __future__ import annotations

import gc
import weakref

import pytest

from router_node.routes.growth import LARGE, Growth


def test_the_collector_rests_until_all_is_made_and_what_was_made_is_old() -> None:
    growth = Growth()
    with growth.of(LARGE):
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(1000)]
        with pytest.raises(ValueError, match="x"), growth.of(LARGE):
            raise ValueError("x")
        assert not gc.isenabled()
    assert gc.isenabled()
    old = {id(one) for one in gc.get_objects(generation=2)}
    assert {id(one) for one in made} <= old


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def test_what_lives_while_a_table_is_made_is_freed_when_it_is_over() -> None:
    circle = _Circle()
    gone = weakref.ref(circle)
    with Growth().of(LARGE):
        pass
    assert gc.get_freeze_count() == 0
    del circle
    gc.collect()
    assert gone() is None


def test_a_few_rules_are_no_matter() -> None:
    growth = Growth()
    with growth.of(LARGE - 1):
        assert gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    growth = Growth()
    gc.disable()
    try:
        with growth.of(LARGE):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
