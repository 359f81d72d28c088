"""The garbage collector of a process that serves: seldom, and never over what was there before the first request."""

from __future__ import annotations

import gc
from typing import Final

# Objects made beyond those freed before the youngest are looked at. Requests leave no cycles behind, so a look finds
# nothing; it costs what is in flight then, and with Python's own 700 there would be one every few dozen requests.
YOUNG: Final = 20_000


def settle_heap() -> None:
    """Everything is up: what lives now, modules and tables, lives as long as the process."""
    gc.collect()
    gc.freeze()
    _, middle, old = gc.get_threshold()
    gc.set_threshold(YOUNG, middle, old)
