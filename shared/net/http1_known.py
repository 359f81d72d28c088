"""Heads of requests that have been seen before.

A client says nearly the same with each of its requests: only the content-length differs. A head that was parsed and
found good is kept with its bytes up to the length's digits and from behind them. The same bytes again, with other
digits, mean the same again: nothing of them need be parsed.
"""

from __future__ import annotations

import re
from typing import Final

from shared.net.exchange import RequestHead

MOST_BYTES: Final = 2048  # of a head that is kept
_MOST: Final = 256  # heads
_digits = re.compile(rb"\r\ncontent-length: *([0-9]{1,10})\r\n", re.IGNORECASE).search


class KnownHeads:
    """Those of one listener's clients, so that connections whose clients say the same share their heads."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def learn(self, raw: bytes, head: RequestHead, length: int | None) -> RequestHead | None:
        """The head to use for these bytes, whose content-length is ``length``: one that is known, else ``head``.

        None when the length is written in an unusual way.
        """
        if length is None:
            key = head.prefix = raw
        else:
            match = _digits(raw)
            if match is None or int(match[1]) != length:
                return None
            head.prefix = raw[: match.start(1)]
            head.suffix = raw[match.end(1) :]
            key = head.prefix + b"\0" + head.suffix  # no good head has a NUL
        heads = self._heads
        known = heads.get(key)
        if known is not None:
            return known
        if len(heads) >= _MOST:
            heads.clear()  # connections keep theirs
        heads[key] = head
        return head
