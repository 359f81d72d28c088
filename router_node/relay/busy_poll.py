"""Stays awake for a moment after a request, for as long as requests follow one another so closely.

A process that sleeps must be woken, and what it works with has left the processor's caches meanwhile: a lone call
costs several times what one among many does, and twice the delay. So after a request has gone to a node or ended the
event loop looks for more without sleeping, for ``window`` seconds. It does so only while most of these come within that
time of the one before: where a model takes long there is nothing to gain, and the processor rests as ever. Tokens of
streams are no requests and keep nobody awake, nor do requests that are refused.

Nor does it where others want the processor: a turn that took far longer than its requests explain was somebody else's,
and for a while after that the loop sleeps whenever it can.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

ENOUGH: Final = 0.75  # share of beginnings and ends that must have come in time
_WEIGHT: Final = 1 / 16  # of the last one in that share
STOLEN: Final = 0.0005  # seconds that a turn takes at most, and as much for each request that begins or ends in it
REST: Final = 0.5  # seconds without staying awake after a longer one


class BusyPoll:
    """Of one event loop. ``window`` and ``clock`` are in seconds."""

    __slots__ = ("_clock", "_last", "_loop", "_news", "_rests_until", "_turned", "_window", "awake", "share", "turns")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, window: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = loop
        self._window = window
        self._clock = clock
        self._last = clock()
        self._turned = 0.0  # when it looked last; 0: the loop has slept since
        self._rests_until = 0.0
        self._news = 0  # beginnings and ends since the last turn
        self.awake = False
        """Whether the loop looks at this after each of its turns, and so does not sleep."""
        self.share = 0.0
        self.turns = 0
        """Looks at an event loop that had nothing for us."""

    def note(self) -> None:
        """A request went to a node, or ended."""
        self._news += 1
        if not self.awake:
            self.awake = True
            self._turned = 0.0
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = self._clock()
        news = self._news
        near = now - self._last <= self._window
        if self._turned and now - self._turned > STOLEN * (news + 1):
            self._rests_until = now + REST
        self._turned = now
        if news:
            self._news = 0
            self._last = now
            self.share += ((1.0 if near else 0.0) - self.share) * _WEIGHT
            near = self.share >= ENOUGH
        else:
            self.turns += 1
        if near and now >= self._rests_until:
            self._loop.call_soon(self._turn)
        else:
            self.awake = False
