"""Why a node is closed: several owners, one word to the client."""

from __future__ import annotations

from inference_node.closings import Closings
from shared.errors import Code


def test_each_owner_opens_what_it_closed():
    closings = Closings()
    closings.add("guard", "memory is short", True, 3.0)
    closings.add("drain", "the node is draining", False, 1.0)
    assert (bool(closings), closings.sheds, closings.reason) == (True, True, "memory is short")
    assert closings.withdraw("guard") and not closings.withdraw("guard")
    assert (bool(closings), closings.sheds, closings.reason) == (True, False, "the node is draining")
    assert closings.withdraw("drain")
    assert (bool(closings), closings.reason) == (False, "")


def test_a_node_that_goes_away_says_so_even_while_it_sheds():
    closings = Closings()
    closings.add("guard", "memory is short", True, 3.0)
    error = closings.refusal()
    assert (error.code, error.reason, error.retry_after) == (Code.RESOURCE_EXHAUSTED, "OVERLOADED", 3.0)
    assert "memory is short" in error.message
    closings.add("drain", "the node is draining", False, 1.0)
    error = closings.refusal()
    assert (error.code, error.reason, error.retry_after) == (Code.UNAVAILABLE, "DRAINING", 1.0)
