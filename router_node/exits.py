"""Exit codes, the same for every process of Laya."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
BAD_CONFIG: Final = 2
UNAVAILABLE: Final = 4  # a port that cannot be had
