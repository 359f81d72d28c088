"""The text of one completion: bytes of tokens in, whole characters out, no more than a stop string lets go."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextOut:
    """Decodes incrementally, and holds back what could still become a stop string."""

    __slots__ = ("_decoder", "_held", "_include", "_stops", "_text", "_width")

    def __init__(self, stops: Sequence[str] = (), include: bool = False) -> None:
        """``include``: the stop string itself belongs to the text."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._include = include
        self._width = max(map(len, self._stops), default=1) - 1  # characters of a stop that may already be there
        self._text = ""
        self._held = 0

    def feed(self, data: bytes, may_stop: bool) -> str:
        """Add a token's bytes; the stop string that they complete, empty for none. Nothing may follow one."""
        before = len(self._text)
        self._text += self._decoder.decode(data)
        self._held = min(self._width, len(self._text))
        if not self._stops or not may_stop:
            return ""
        start = max(0, before - self._width)
        found = [(at, stop) for stop in self._stops if (at := self._text.find(stop, start)) >= 0]
        if not found:
            return ""
        at, stop = min(found)
        self._text = self._text[: at + len(stop) if self._include else at]
        self._held = 0
        return stop

    def end(self) -> None:
        """Nothing follows: what was held back goes out. Half a character is none."""
        self._held = 0

    def take(self) -> str:
        """What can go out now."""
        cut = len(self._text) - self._held
        out, self._text = self._text[:cut], self._text[cut:]
        return out
