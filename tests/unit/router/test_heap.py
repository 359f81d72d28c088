"""The collector of a process that serves."""

from __future__ import annotations

import gc

from router_node.heap import YOUNG, settle_heap


def test_what_was_there_is_left_alone_and_what_follows_is_looked_at_seldom():
    before = gc.get_threshold()
    try:
        settle_heap()
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold() == (YOUNG, *before[1:])
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
