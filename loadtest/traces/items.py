"""What a trace is made of, and what is done with a part of one that cannot be sent as it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.sim.mooncake import BadTrace
from loadtest.users.scenarios import Scenario

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Item:
    """A request, or a conversation, and when it begins: seconds from the start of the replay."""

    at: float
    play: Callable[[], Scenario]
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """How a trace is to be sent."""

    speed: float = 1.0
    """2 halves the times between requests."""
    context: int = 0
    """Tokens that prompt and answer may have together; 0 where it is not known."""
    longest_output: int = 1 << 20
    """Tokens of an answer at most."""
    longest_gap: float = 60.0
    """Seconds without a request, after the speed; a longer hole is shortened to it."""
    count: int = 100_000
    """Requests at most."""
    lenient: bool = False
    """Leave out what is malformed, with a line that says so, instead of refusing the file."""
    rate: float = 1.0
    """Conversations a second, where a file has no times."""
    think: float = 1.0
    """Mean seconds between an answer and the next turn, where a file has no times."""
    timeout: float = 600.0
    """Seconds for one call."""
    seed: int = 1


@dataclass(slots=True)
class Notes:
    """What was changed or left out; of each kind the first few are told one by one."""

    lines: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, line: str = "") -> None:
        """One thing of a kind; without a line it is only counted."""
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        if line and count <= _SHOWN:
            self.lines.append(line)

    def told(self) -> list[str]:
        """The lines, and how many there are of what was told in part."""
        told = list(self.lines)
        for kind, count in self.counts.items():
            if count > _SHOWN or kind == WANTED:
                told.append(f"{kind}: {count} in all")
        return told


WANTED = "answers cut to --max-output"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A trace that can be sent."""

    name: str
    kind: str
    items: list[Item]
    notes: Notes

    @property
    def seconds(self) -> float:
        """When the last one begins."""
        return self.items[-1].at if self.items else 0.0

    def reusable(self) -> float:
        """Share of prompt tokens that a cache without limits would have: what was there in an earlier prompt."""
        seen: set[int] = set()
        again = total = 0
        for item in self.items:
            total += item.prompt_tokens
            for i, number in enumerate(item.blocks):
                if number not in seen:
                    break
                again += min(512, item.prompt_tokens - 512 * i)
            seen.update(item.blocks)
        return again / total if total else 0.0


def clamp(prompt: int, output: int, rules: Rules, where: str, notes: Notes) -> tuple[int, int]:
    """Tokens of prompt and answer that the context takes."""
    wanted = max(1, min(output, rules.longest_output))
    cut, most = wanted, prompt
    if wanted < output:
        notes.add(WANTED)
    if rules.context:
        if prompt + cut > rules.context:
            cut = min(cut, max(1, rules.context // 4))
        # A tokenizer may add a few of its own.
        most = max(1, rules.context - cut - max(8, rules.context // 100))
    if most < prompt:
        notes.add(
            "longer than the context",
            f"{where}: input_length {prompt} cut to {most}: the context has {rules.context} tokens",
        )
    if cut < wanted:
        notes.add(
            "answers longer than the context takes",
            f"{where}: output_length {wanted} cut to {cut}: the context has {rules.context} tokens",
        )
    return min(prompt, most), cut


class Clock:
    """Times of a trace as times of its replay: the first is 0, speed applied, holes shortened, never backwards."""

    def __init__(self, rules: Rules, notes: Notes) -> None:
        self._rules, self._notes = rules, notes
        self._before: float | None = None
        self._now = 0.0

    def at(self, seconds: float, where: str) -> float:
        """The time of the next request. Raises BadTrace where time goes back and that is not to be mended."""
        if self._before is None:
            self._before = seconds
        gap = (seconds - self._before) / self._rules.speed
        if gap < 0:
            line = f"{where}: timestamp {seconds * 1e3:g} is earlier than the one before"
            if not self._rules.lenient:
                raise BadTrace(f"{line}; sort the file by it, or pass --lenient to send it at once")
            self._notes.add("earlier than the one before", f"{line}; sent at once")
            return self._now
        if gap > self._rules.longest_gap:
            self._notes.add(
                "holes",
                f"{where}: {gap:.0f} s without a request cut to {self._rules.longest_gap:g} s (--longest-gap)",
            )
            gap = self._rules.longest_gap
        self._before = seconds
        self._now += gap
        return self._now
