"""The requests of a round, made from a plan and a seed: the same arguments give the same requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import msgspec

from loadtest.bench.plan import BadPlan, Plan, Work, stretches
from loadtest.sim import mooncake
from loadtest.sim.jobs import Job
from loadtest.sim.traces import KINDS, Ask, make

_BURSTINESS = 3.0
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word",
    "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour",
    "game", "line", "end", "member", "law", "car",
)  # fmt: skip
_TRACE_REQUESTS = 20_000  # read or made of a trace for one round, at most


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it is due in seconds of its round, and what it asks for (lengths in tokens)."""

    at: float
    kind: str
    text: str
    prompt: int
    output: int
    priority: int = 0
    session: str = ""
    cancel_after: int = 0
    """Tokens after which the client goes away; 0: it stays."""


def arrivals(plan: Plan, rng: random.Random) -> Iterator[float]:
    """Times of a round, in order."""
    start = 0.0
    for seconds, times in stretches(plan):
        rate = plan.rate * times
        if rate > 0:
            at = start + (0.0 if plan.arrivals == "constant" else _gap(plan, rng, rate))
            while at < start + seconds:
                yield at
                at += _gap(plan, rng, rate)
        start += seconds


def _gap(plan: Plan, rng: random.Random, rate: float) -> float:
    if plan.arrivals == "constant":
        return 1.0 / rate
    if plan.arrivals == "poisson":
        return rng.expovariate(rate)
    shape = 1.0 / _BURSTINESS**2
    return rng.gammavariate(shape, 1.0 / (rate * shape))


def requests(plan: Plan, seed: int, salt: str = "", tokens_per_word: float = 1.0) -> list[Asked]:
    """A round. ``salt`` makes every text another one, so that no cache knows it. Raises BadTrace or OSError."""
    rng = random.Random(f"{plan.name} {seed}")
    times = list(arrivals(plan, rng))
    sources = [_source(work, seed, i, len(times)) for i, work in enumerate(plan.works)]
    weights = [work.share for work in plan.works]
    words = Words(salt or str(seed), tokens_per_word)
    out = []
    for number, at in enumerate(times):
        [which] = rng.choices(range(len(sources)), weights)
        work, (job, block) = plan.works[which], next(sources[which])
        cancelled = work.cancel > 0 and rng.random() < work.cancel
        out.append(
            Asked(
                at,
                work.kind if work.kind in KINDS else "fixed" if work.kind == "fixed" else Path(work.kind).stem,
                words.text(job, block, f"{which}-{number}"),
                job.prompt,
                job.output,
                work.priority,
                f"{salt}{seed}-{job.session.decode()}" if work.sessions and job.session else "",
                rng.randint(1, max(1, job.output - 1)) if cancelled else 0,
            )
        )
    return out


def look(plan: Plan) -> None:
    """Read what files a plan names. Raises BadPlan for one that cannot be read, BadTrace for one that is no trace."""
    for i, work in enumerate(plan.works):
        if work.kind == "fixed" or work.kind in KINDS:
            continue
        try:
            mooncake.read(Path(work.kind), _TRACE_REQUESTS, 1, 0.0, max(2, work.prompt * 4 // 3))
        except OSError as error:
            raise BadPlan(f"works[{i}].kind: {work.kind} cannot be read ({error.strerror})") from None


def _source(work: Work, seed: int, which: int, count: int) -> Iterator[tuple[Job, int]]:
    if work.kind == "fixed":
        return cycle([(Job(0, 0.0, work.prompt, work.output, work.output, (), b""), 512)])
    count = max(1, min(count, _TRACE_REQUESTS))
    if work.kind in KINDS:
        trace = make(work.kind, Ask(count, longest=max(2, work.prompt * 4 // 3)), seed * 64 + which)
    else:
        trace = mooncake.read(Path(work.kind), count, 1, 0.0, max(2, work.prompt * 4 // 3))
    return _cut(list(trace.jobs), trace.block_tokens, work)


def _cut(jobs: list[Job], block: int, work: Work) -> Iterator[tuple[Job, int]]:
    # A trace that is shorter than the round begins anew.
    for job in cycle(jobs):
        prompt, output = min(job.prompt, work.prompt), max(1, min(job.output, work.output))
        yield Job(job.number, job.arrived, prompt, output, output, job.blocks[: prompt // block], job.session), block


class Words:
    """Texts made of common words, whose equal blocks of a trace are equal texts. Lengths are in tokens, about."""

    def __init__(self, salt: str, tokens_per_word: float = 1.0) -> None:
        self._salt = salt
        self._each = max(tokens_per_word, 0.1)
        self._known: dict[int, str] = {}

    def text(self, job: Job, block: int, name: str) -> str:
        """The prompt of a request; ``name`` is its own."""
        parts = [self._block(key, block) for key in job.blocks]
        rest = job.prompt - len(job.blocks) * block
        if rest > 0 or not parts:
            parts.append(self._make(f"own {name}", max(1, rest)))
        return " ".join(parts)

    def _block(self, key: int, tokens: int) -> str:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(f"block {key}", tokens)
        return found

    def _make(self, name: str, tokens: int) -> str:
        rng = random.Random(f"{self._salt} {name}")
        return " ".join(rng.choices(_WORDS, k=max(1, round(tokens / self._each))))


class _Turn(msgspec.Struct):
    role: str
    content: str


class _Options(msgspec.Struct):
    include_usage: bool = True


class _Body(msgspec.Struct, omit_defaults=True):
    model: str
    messages: list[_Turn]
    max_tokens: int
    temperature: float | None = None
    ignore_eos: bool = False
    priority: int = 0
    stream: bool = False
    stream_options: _Options | None = None


_encode = msgspec.json.Encoder().encode


def body(asked: Asked, model: str) -> bytes:
    """The request as an OpenAI chat completion that is streamed and has exactly ``output`` tokens."""
    return _encode(_Body(model, [_Turn("user", asked.text)], asked.output, 0.0, True, asked.priority, True, _Options()))
