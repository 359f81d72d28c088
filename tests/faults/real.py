"""Requests to a real engine: what it says cannot be known before, but how much, and in what form."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.faults.load import Ask
from tests.faults.tally import Wrong


class RealAsk(Ask):
    """As many tokens as were asked for, or none too many where the answer broke off, and words."""

    def _expect(self) -> None:
        self.tokens = 4 + self.tokens // 3  # a small machine is slow

    def check_ids(self, got: Sequence[int], whole: bool) -> None:
        """Raises Wrong unless so many tokens may be."""
        if len(got) > self.tokens or (whole and len(got) != self.tokens):
            raise Wrong(f"{len(got)} of {self.tokens} tokens")
        if any(token < 0 for token in got):
            raise Wrong("a token below zero")

    def check_text(self, got: str, whole: bool) -> None:
        """The same of the text."""
        if whole and not got:
            raise Wrong("no text")


def asks(model: str) -> Callable[[random.Random], Ask]:
    """Makes requests for a model."""

    def make(rng: random.Random) -> Ask:
        ask = RealAsk(rng)
        ask.model = model
        return ask

    return make
