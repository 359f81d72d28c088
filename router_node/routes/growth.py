"""The garbage collector while a large table is made: it rests, and what was made counts as old at once.

A table of thousands of rules is a hundred thousand objects that live long and hold no circles. A look at them takes a
tenth of a second in which nothing else goes on, and finds nothing; what is old is looked at least often.
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Final, Self

LARGE: Final = 500  # rules from which on that is worth it


class Growth:
    """Wraps work that makes ``rules`` rules; may be entered again while it is on."""

    __slots__ = ("_deep", "_was_on")

    def __init__(self) -> None:
        self._deep = 0
        self._was_on = False

    def of(self, rules: int) -> Growth:
        """What to wrap work with that makes so many: this one, or one that does nothing."""
        return self if rules >= LARGE else _Nothing()

    def __enter__(self) -> Self:
        if not self._deep:
            self._was_on = gc.isenabled()
            gc.disable()
        self._deep += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deep -= 1
        if not self._deep:
            gc.freeze()  # all that there is becomes old, without a look at it, by going out and coming in again:
            gc.unfreeze()  # what stayed out would never be freed, a connection's circle of objects among it
            if self._was_on:
                gc.enable()


class _Nothing(Growth):
    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
