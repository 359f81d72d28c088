"""What a router says about a request's parameters: caps that refuse, defaults and bounds that correct.

``laya-clamps`` is one JSON object. ``max_n`` and ``max_max_tokens`` are caps: a request above them is refused. Any
other key names a sampling parameter and gives ``default``, ``min`` and ``max`` for it: an absent value takes the
default, one out of bounds takes the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from shared.errors import invalid
from shared.params import REAL, WHOLE

MAX_BYTES = 8192


class Bound(msgspec.Struct, frozen=True):
    """Default and bounds of one parameter that is a number."""

    default: float | None = None
    min: float | None = None
    max: float | None = None

    def apply(self, value: Any) -> Any:
        """The value to use in place of ``value``."""
        if value is None:
            return self.default
        if self.min is not None and value < self.min:
            return self.min
        if self.max is not None and value > self.max:
            return self.max
        return value


@dataclass(frozen=True, slots=True)
class Clamps:
    """A router's word on parameters; the empty one changes nothing."""

    max_n: int | None = None
    max_max_tokens: int | None = None
    bounds: dict[str, Bound] = field(default_factory=dict)

    def apply(self, name: str, value: Any) -> Any:
        """The value to use for a parameter; None means absent."""
        bound = self.bounds.get(name)
        if bound is None:
            return value
        value = bound.apply(value)
        return value if value is None or name in REAL else int(value)


NONE = Clamps()


@lru_cache(maxsize=256)  # routers send the same few values with every request
def parse(raw: bytes) -> Clamps:
    """Read the header's value. Raises LayaError INVALID_ARGUMENT for one that makes no sense."""
    if not raw:
        return NONE
    try:
        if len(raw) > MAX_BYTES:
            raise ValueError(f"over {MAX_BYTES} bytes")
        tree = msgspec.json.decode(raw, type=dict[str, Any])
        caps = {name: tree.pop(name, None) for name in ("max_n", "max_max_tokens")}
        for name, value in caps.items():
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a whole number of 1 or more")
        unknown = sorted(tree.keys() - WHOLE - REAL)
        if unknown:
            raise ValueError(f"unknown parameter {unknown[0]!r}")
        bounds = {name: msgspec.convert(value, Bound) for name, value in tree.items()}
    except (ValueError, msgspec.DecodeError) as e:
        raise invalid(f"The metadata laya-clamps cannot be used: {e}.", "laya-clamps") from None
    return Clamps(caps["max_n"], caps["max_max_tokens"], bounds)
