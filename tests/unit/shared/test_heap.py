"""The collector of a process that serves."""

from __future__ import annotations

import gc

import pytest

from shared.heap import SELDOM, settle_heap


@pytest.mark.parametrize("young", [SELDOM, 0])
def test_what_was_there_is_left_alone_and_what_follows_is_looked_at_as_told(young: int):
    before = gc.get_threshold()
    try:
        settle_heap(young)
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold() == (young or before[0], *before[1:])
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
