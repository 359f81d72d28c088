"""Sizes of memory as people write and read them. 1 GiB is 2**30 bytes, 1 GB is 10**9."""

from __future__ import annotations

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
MOST = 1 << 60  # no machine has more; a larger number is a mistake

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}ib"] = 1 << (10 * _power)
    _UNITS[f"{_letter}b"] = 1000**_power
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([a-z]{0,3})")


def parse_size(text: str) -> int:
    """Bytes of "24GiB", "24G" (the same), "24GB" (decimal), "512MiB" or a plain number. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no size; write it like 24GiB or 512MiB")
    size = int(float(found[1]) * _UNITS[found[2]]) if "." in found[1] else int(found[1]) * _UNITS[found[2]]
    if not 0 < size <= MOST:
        raise ValueError(f"{text!r} is no size that memory has; write it like 24GiB or 512MiB")
    return size


def gib(size: float) -> str:
    """Bytes in GiB with two digits after the point, for columns; under 10 MiB in three."""
    return f"{size / GIB:.2f}" if abs(size) >= 10 * MIB or not size else f"{size / GIB:.3f}"


def short(size: float) -> str:
    """Bytes in the unit that reads best, three or four digits: "13.5 GiB", "512 KiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            value = size / unit
            return f"{value:,.0f} {name}" if value >= 100 or value == int(value) else f"{value:.3g} {name}"
    return f"{size:.0f} B"


def tokens(count: int) -> str:
    """Tokens for a table's head: "4K", "128K", "1M", or the plain number."""
    if count >= MIB and count % MIB == 0:
        return f"{count // MIB}M"
    if count >= KIB and count % KIB == 0:
        return f"{count // KIB}K"
    return f"{count:,}"


def round_context(tokens: int) -> int:
    """A context cut to a number that people would write."""
    for step in (1024, 256):
        if tokens >= 4 * step:
            return tokens // step * step
    return tokens
