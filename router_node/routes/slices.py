"""Work that takes many milliseconds, done in slices with the loop's other work between them.

It is written as a generator that yields, at every stretch, about how much it has done since: one unit is one rule
looked at once, half a microsecond or so. Threads would not do: while one computes, the loop waits for the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[int, None, T]

STRETCH: Final = 256
"""Rules that are looked at between two yields."""
SLICE: Final = 1500
"""Units of work in one turn of the loop, about a millisecond; what is less altogether is done at once."""


class Working(Exception):
    """There is more to do."""


def whole(steps: Steps[T]) -> T:
    """Do all of it now."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


def turn(steps: Steps[T]) -> T:
    """Do one slice. Raises Working when that was not all."""
    left = SLICE
    while left > 0:
        try:
            left -= next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
    raise Working


async def in_turns(steps: Steps[T]) -> T:
    """Do all of it, a slice a turn."""
    try:
        while True:
            try:
                return turn(steps)
            except Working:
                await asyncio.sleep(0)
    finally:
        steps.close()
