"""What a client is told."""

from __future__ import annotations

from typing import Any

import pytest

from router_node.dispatch import Reservation
from shared.errors import Code, LayaError
from tests.unit.dispatch.support import Bed


def refusal(bed: Bed, **ask: Any) -> LayaError:
    with pytest.raises(LayaError) as caught:
        bed.ask(**ask)
    return caught.value


def test_more_than_the_largest_node_holds_can_never_fit_and_says_the_numbers() -> None:
    bed = Bed()
    bed.node("small", capacity=1600)
    bed.node("large", capacity=3200)
    error = refusal(bed, prompt_tokens=3000, max_new_tokens=500, exact=True)
    assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "NEVER_FITS")
    for number in ("3000", "500", "3500", "3200", "'m'"):
        assert number in error.message
    assert bed.reserve(prompt_tokens=2000, max_new_tokens=500, exact=True).node.id == "large"


def test_longer_than_the_context_can_never_fit() -> None:
    bed = Bed()
    bed.nodes(2, max_seq_len=1000)
    error = refusal(bed, prompt_tokens=900, max_new_tokens=101, exact=True, n=1)
    assert error.reason == "NEVER_FITS" and "1001" in error.message and "1000" in error.message
    assert isinstance(bed.ask(prompt_tokens=900, max_new_tokens=100, exact=True, n=1), Reservation)
    assert isinstance(bed.ask(prompt_tokens=900, max_new_tokens=300, exact=True, n=3), Reservation)
    assert refusal(bed, prompt_tokens=1000, max_new_tokens=10, exact=True).reason == "NEVER_FITS"


def test_new_tokens_of_an_unknown_number_of_sequences_are_left_to_the_node() -> None:
    bed = Bed()
    bed.node("a", max_seq_len=1000)
    assert isinstance(bed.ask(prompt_tokens=500, max_new_tokens=4000, exact=True, n=0), Reservation)


def test_an_estimate_refuses_only_what_is_twice_too_long() -> None:
    bed = Bed()
    bed.node("a", capacity=1600)
    got = bed.reserve(prompt_tokens=2000, max_new_tokens=160)
    assert got.tokens == 1600
    got.end()
    error = refusal(bed, prompt_tokens=4000, max_new_tokens=160)
    assert error.reason == "NEVER_FITS" and error.message.startswith("About 4000")
    assert refusal(bed, prompt_tokens=10, max_new_tokens=1600).reason == "NEVER_FITS"


def test_no_ready_node_says_in_what_state_they_are() -> None:
    bed = Bed()
    bed.nodes(3)
    bed.dispatcher.set_link("n0", False)
    bed.report("n1", draining=True)
    bed.report("n2", ready=False)
    error = refusal(bed)
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "NO_NODE")
    assert "1 dark, 1 draining, 1 starting" in error.message and error.retry_after is not None


def test_long_lists_and_names_are_cut() -> None:
    bed = Bed()
    for i in range(30):
        bed.node(f"n{i}", model=f"model-{i:02}")
    error = refusal(bed, model="x" * 5000)
    assert "model-19 and 10 more" in error.message and len(error.message) < 700
