"""The garbage collector of a process that serves: never over what was there before the first request."""

from __future__ import annotations

import gc
from typing import Final

# Objects made beyond those freed before the youngest are looked at. A router's requests and connections leave no cycles
# behind, so a look finds nothing; it costs what is in flight then, and with Python's own 700 there would be one every
# few dozen requests.
SELDOM: Final = 20_000


def settle_heap(young: int = 0) -> None:
    """Everything is up: what lives now, modules and tables, lives as long as the process.

    With vLLM in it that is 600,000 objects, and a look at them stops every stream of a node for a quarter of a second.
    ``young`` objects are made before the youngest are looked at; 0 leaves Python's own number.
    """
    gc.collect()
    gc.freeze()
    first, middle, old = gc.get_threshold()
    gc.set_threshold(young or first, middle, old)
