"""Regular expressions by RE2: linear in the text whatever a pattern looks like, and many at once in one pass.

A name's pattern (model, tenant, header) must match the whole name; a content pattern is searched for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import re2

from router_node.routes.rules import RouteError
from router_node.routes.slices import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTENT_BYTES: Final = 4096  # of the prompt's beginning, in which content patterns are searched
MAX_CONTENT: Final = 64  # content patterns of one table
MAX_PROGRAM: Final = 3000  # instructions of one pattern
MAX_SECONDS: Final = 0.0005  # for one content pattern over CONTENT_BYTES
_MEMORY: Final = 16 << 20  # bytes that a set's automaton may grow to
_ROUNDS: Final = 3
_TOGETHER: Final = 128  # patterns of names in one set
_PATTERN: Final = 10  # units of work to put one into its set

# What a pattern is timed on: prose, code, one letter, digits, and bytes that hardly repeat.
_SAMPLES: Final = tuple(
    (sample * (CONTENT_BYTES // len(sample) + 1))[:CONTENT_BYTES].encode()
    for sample in (
        "Please extract the names and dates from the following text, and answer as JSON. ",
        "def main(argv: list[str]) -> int:\n    return sum(int(x) for x in argv) if argv else 0\n",
        "a",
        "0123456789 ",
        "".join(chr(33 + (i * i * 7 + i * 13) % 90) for i in range(997)),
    )
)


def compile_one(pattern: str, where: str) -> Any:
    """A compiled pattern. Raises RouteError for one that RE2 does not take, or that is too large to run."""
    found = _compile(pattern)
    if isinstance(found, str):
        raise RouteError(f"{where}: {pattern[:80]!r} is no RE2 pattern: {found}")
    if found.programsize > MAX_PROGRAM:
        raise RouteError(
            f"{where}: {pattern[:80]!r} takes {found.programsize} instructions, more than {MAX_PROGRAM}: it is too dear"
            " to run; use smaller counts"
        )
    return found


def from_glob(glob: str) -> str:
    """The regular expression of a glob: ``*`` is any text, ``?`` one character, all else itself."""
    return "".join({"*": "(?s:.*)", "?": "(?s:.)"}.get(char) or re2.escape(char) for char in glob)


def content_cost(pattern: str) -> float:
    """Seconds that one content pattern takes at worst over the samples, the best of a few tries each."""
    compiled = _compile(pattern)
    if isinstance(compiled, str):
        raise RouteError(f"{pattern[:80]!r} is no RE2 pattern: {compiled}")
    worst = 0.0
    for sample in _SAMPLES:
        worst = max(worst, min(_timed(compiled, sample) for _ in range(_ROUNDS)))
    return worst


def _timed(compiled: Any, sample: bytes) -> float:
    began = time.perf_counter()
    compiled.search(sample)
    return time.perf_counter() - began


class PatternSet:
    """Which of several patterns a text matches, in one pass. ``whole`` wants the whole text to match."""

    __slots__ = ("_set", "patterns")

    def __init__(self, patterns: Iterable[str], *, whole: bool) -> None:
        self.patterns: Sequence[str] = tuple(patterns)
        options = _options()
        self._set = re2.Set.FullMatchSet(options) if whole else re2.Set.SearchSet(options)
        for pattern in self.patterns:
            self._set.Add(pattern)
        try:
            self._set.Compile()
        except re2.error:
            raise RouteError(
                f"the {len(self.patterns)} content patterns are too large together; use fewer, or smaller counts"
                if not whole
                else f"{len(self.patterns)} patterns of names are too large together; use smaller counts"
            ) from None

    def match(self, text: str | bytes) -> list[int]:
        """Places, in ``patterns``, of those that match."""
        found: list[int] | None = self._set.Match(text) if self.patterns else None
        return found or []


class NameSets:
    """Which of any number of patterns match a name as a whole: sets of some hundred, each compiled in one stretch."""

    __slots__ = ("_sets", "patterns")

    def __init__(self, sets: Sequence[PatternSet]) -> None:
        self._sets = sets
        self.patterns: Sequence[str] = [pattern for one in sets for pattern in one.patterns]

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Steps[NameSets]:
        """Made in slices. Raises RouteError for a pattern that is too large by itself."""
        sets: list[PatternSet] = []
        parts = [patterns[start : start + _TOGETHER] for start in range(0, len(patterns), _TOGETHER)]
        while parts:
            part = parts.pop(0)
            try:
                sets.append(PatternSet(part, whole=True))
            except RouteError:
                if len(part) == 1:
                    raise
                half = len(part) // 2
                parts[:0] = [part[:half], part[half:]]
            yield _PATTERN * len(part)
        return cls(sets)

    def match(self, text: str) -> list[str]:
        """Those that match."""
        return [one.patterns[at] for one in self._sets for at in one.match(text)]


def _options() -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY
    options.never_capture = True
    options.log_errors = False
    return options


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> Any:
    """The pattern compiled, or why it cannot be."""
    try:
        return re2.compile(pattern, _options())
    except re2.error as error:
        said = error.args[0] if error.args else "it is malformed"
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        return re.sub(r"\s+", " ", text)[:200]
