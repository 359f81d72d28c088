"""What became of the requests of one stretch of time, and the table of all stretches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_HEAD: Final = ("fault", "sent", "succeeded", "retried", "sent on", "failed, typed", "cut", "hung", "wrong", "stall s")


class Failed(Exception):
    """The request failed, with an error of Laya's own."""


class Cut(Exception):
    """The connection to the router ended in the middle of the answer."""


class Wrong(Exception):
    """Something that must never be."""


@dataclass
class Tally:
    """Counts of requests that ended in one stretch.

    ``retried`` are those of ``succeeded`` that took the client more than one try, ``left`` those that it broke off
    itself. ``sent_on`` is how often routers have sent a request, or moved a stream, to another node meanwhile, by their
    own count. ``failed`` ended with an error of Laya's own that says what was wrong; ``cut`` lost the connection to the
    router itself in the middle of an answer, which no router can put into words. ``hung`` had no end at all in time,
    ``wrong`` an answer that is not right, or an error that is none. ``stall`` is the longest time in which a request
    saw nothing happen.
    """

    name: str
    sent: int = 0
    succeeded: int = 0
    retried: int = 0
    left: int = 0
    sent_on: int = 0
    failed: int = 0
    cut: int = 0
    hung: int = 0
    wrong: int = 0
    stall: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def ended(
        self, kind: str, failure: Exception | None, retries: int, stall: float, again: Sequence[str], left: bool = False
    ) -> None:
        """A request has ended, after so many retries, for these reasons, and at worst so long without news."""
        self.sent += 1
        self.stall = max(self.stall, stall)
        self.reasons.update(f"again: {why}" for why in again)
        if failure is None:
            self.succeeded += 1
            self.retried += retries > 0
            self.left += left
        elif isinstance(failure, Failed):
            self.failed += 1
            self.reasons[str(failure)] += 1
        elif isinstance(failure, Cut):
            self.cut += 1
            self.reasons[f"cut: {failure}"] += 1
        elif isinstance(failure, Wrong):
            self.wrong += 1
            self.note(f"{kind}: {failure}")
        else:
            self.hung += 1
            self.note(f"{kind}: no end in time")

    def note(self, what: str) -> None:
        """Keep the first few of what went wrong."""
        if len(self.examples) < 8:
            self.examples.append(what)

    def row(self) -> tuple[str, ...]:
        """The stretch as cells."""
        good = (self.sent, self.succeeded, self.retried, self.sent_on)
        counts = (*good, self.failed, self.cut, self.hung, self.wrong)
        return (self.name, *(str(count) for count in counts), f"{self.stall:.2f}")


def merged(tallies: Sequence[Tally]) -> list[Tally]:
    """Stretches of one name as one, and all pairs of faults as one."""
    groups: dict[str, list[Tally]] = {}
    for one in tallies:
        groups.setdefault("pairs" if " + " in one.name else one.name, []).append(one)
    out = []
    for name, some in groups.items():
        one = total(some)
        one.name = name if len(some) == 1 else f"{name}, {len(some)} times" if name != "pairs" else f"{len(some)} pairs"
        out.append(one)
    return sorted(out, key=lambda one: one.name.endswith("pairs"))


def total(tallies: Sequence[Tally]) -> Tally:
    """All stretches as one."""
    out = Tally("all")
    for one in tallies:
        for name in ("sent", "succeeded", "retried", "left", "sent_on", "failed", "cut", "hung", "wrong"):
            setattr(out, name, getattr(out, name) + getattr(one, name))
        out.stall = max(out.stall, one.stall)
        out.reasons.update(one.reasons)
    return out


def table(tallies: Sequence[Tally]) -> str:
    """A Markdown table, the sum last."""
    rows = [_HEAD, *(one.row() for one in (*tallies, total(tallies)))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
