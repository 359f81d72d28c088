"""What an admitted request holds, and gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_node.lanes import Lane, Need
from inference_node.memory import Hold

if TYPE_CHECKING:
    from inference_node.admission import Admission


class Admitted:
    """One admitted request. ``release`` it exactly when it has ended; more calls change nothing."""

    __slots__ = ("_admission", "_at", "_hold", "_lane", "_prefill", "_sequences")

    def __init__(self, admission: Admission, hold: Hold, need: Need, lane: Lane, at: float) -> None:
        self._admission = admission
        self._hold = hold
        self._lane = lane
        self._at = at
        self._prefill = need.prefill_tokens
        self._sequences = need.sequences

    @property
    def blocks(self) -> int:
        """KV blocks it holds."""
        return self._hold.blocks

    def prefill_done(self) -> None:
        """The first token is there: the request's share of the prefill cap is free."""
        tokens = self._prefill
        if tokens:
            self._prefill = 0
            self._admission._prefill_done(self._lane, tokens, self._at)

    def release(self) -> None:
        """The request has ended."""
        if not self._hold.released:
            tokens, self._prefill = self._prefill, 0
            self._admission._release(self._hold, self._lane, tokens, self._sequences, self._at)
