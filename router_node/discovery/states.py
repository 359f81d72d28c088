"""What a router may think of a node; these words reach operators and label metrics."""

from __future__ import annotations

from typing import Final, Literal

State = Literal["ready", "starting", "draining", "closed", "ejected", "dark", "mismatch"]

STATES: Final[tuple[State, ...]] = (
    "ready",  # takes requests
    "starting",  # connected, not warmed up yet
    "draining",  # finishes what it has
    "closed",  # alive, but its admission is closed; the detail says why
    "ejected",  # alive, but it rests because its requests failed or were far too slow
    "dark",  # no connection, or no answer over it
    "mismatch",  # not the node, model or protocol it should be; never sent anything
)
