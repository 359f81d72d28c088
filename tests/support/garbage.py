"""Whether objects are freed when they are let go of, or wait for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def no_collector(kind: type) -> Iterator[Callable[[], int]]:
    """The collector rests; gives what counts the objects of exactly that kind that have come and are still there."""

    def there() -> int:
        return sum(type(found) is kind for found in gc.get_objects())

    gc.collect()
    before = there()
    gc.disable()
    try:
        yield lambda: there() - before
    finally:
        gc.enable()
