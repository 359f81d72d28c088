"""Streams that other nodes began are counted once: as resumed with their tokens, or by why they were not."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from inference_node.resumes import Resumes
from shared.errors import unavailable


class Page:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.resumes = Resumes(self.registry)

    def value(self, outcome: str) -> float:
        return self.registry.get_sample_value("laya_node_resumes_total", {"outcome": outcome}) or 0.0

    @property
    def tokens(self) -> float:
        return self.registry.get_sample_value("laya_node_resumed_tokens_total") or 0.0


def test_one_that_went_on_counts_once_with_its_tokens_whatever_comes_after() -> None:
    page = Page()
    with pytest.raises(ValueError, match="later"), page.resumes.attempt(True) as attempt:
        assert attempt is not None
        attempt.went_on(7)
        attempt.went_on(7)
        raise ValueError("later")
    assert (page.value("resumed"), page.tokens, page.value("failed")) == (1, 7, 0)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (unavailable("no", "RESUME_INEXACT"), "RESUME_INEXACT"),
        (asyncio.CancelledError(), "cancelled"),
        (ValueError("x"), "failed"),
    ],
)
def test_one_that_did_not_counts_by_why(error: BaseException, outcome: str) -> None:
    page = Page()
    with pytest.raises(type(error)), page.resumes.attempt(True):
        raise error
    assert (page.value(outcome), page.value("resumed"), page.tokens) == (1, 0, 0)


def test_a_request_of_its_own_counts_nothing() -> None:
    page = Page()
    with page.resumes.attempt(False) as attempt:
        assert attempt is None
    assert page.value("resumed") == 0
