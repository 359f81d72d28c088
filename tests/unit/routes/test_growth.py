"""The collector rests while a large table is made."""

from __future__ import annotations

import gc

import pytest

from router_node.routes.growth import LARGE, Growth


def test_the_collector_rests_until_all_is_made_and_what_was_made_is_set_aside() -> None:
    growth = Growth()
    before = gc.get_freeze_count()
    try:
        with growth.of(LARGE):
            assert not gc.isenabled()
            with pytest.raises(ValueError, match="x"), growth.of(LARGE):
                raise ValueError("x")
            assert not gc.isenabled() and gc.get_freeze_count() == before
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


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
        gc.unfreeze()
