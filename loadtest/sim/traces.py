"""Traces made from a seed, with length distributions that others have published.

* ``azure``: medians of the Azure conversation trace of 2023 (1020 tokens in, 129 out).
* ``sharegpt``: means of ShareGPT as the vLLM paper gives them (161 in, 338 out), in conversations of several turns.
* ``heavy``: Pareto tails, so that a few requests are most of the work.
* ``shared``: the shared-prefix workload of SGLang's benchmark: system prompts of 2,048 tokens in groups, a question of
  128, an answer of 256; groups are asked for by Zipf's law.
* ``mooncake``: quantiles of Mooncake's conversation trace (6.9 k tokens in, 350 out, at the median) and chains of turns
  that bring its share of reusable tokens, 37 %.

``load`` is the share of the cluster's time that the requests would take with a batch of ``BATCH`` and no cache.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadtest.sim.jobs import Job, Trace

PREFILL, BASE, PER_SEQUENCE = 8000.0, 0.006, 0.00035
BATCH = 32
CONVERSATION_IN = (
    901, 964, 1261, 1661, 2306, 3260, 4250, 4993, 5870, 6909, 8187, 9571, 11238, 13199, 15368, 17871, 21471, 27398,
    39554,
)  # fmt: skip
CONVERSATION_OUT = (
    10, 24, 46, 100, 156, 213, 256, 291, 322, 350, 375, 399, 423, 447, 472, 504, 543, 597, 698,
)  # fmt: skip
"""Twentieths of the published trace, measured on it."""

Sizes = tuple[int, int, tuple[int, ...], bytes, float]
"""Prompt, output, block ids, session, and seconds before which it must not come (a turn waits for the one before)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a trace should be like."""

    count: int = 4000
    nodes: int = 16
    load: float = 0.7
    burstiness: float = 1.0
    """Coefficient of variation of the times between two arrivals: 1 is Poisson, more comes in bursts (gamma)."""
    asked_ratio: float = 1.5
    """Mean of max_tokens over the real output."""
    longest: int = 32_768
    """Most tokens of prompt and max_tokens together."""


class _Ids:
    """New block ids."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> tuple[int, ...]:
        first = self._next
        self._next += count
        return tuple(range(first, self._next))


Maker = Callable[[random.Random, _Ids, int], Iterator[tuple[int, int, tuple[int, ...], bytes]]]


def make(kind: str, ask: Ask, seed: int) -> Trace:
    """A trace of that kind; the same arguments give the same requests."""
    maker, block = KINDS[kind]
    rate = ask.load * ask.nodes / _mean_work(maker, ask, block, seed)
    return Trace(kind, block, ask.count, ask.count / rate, _jobs(maker, ask, block, seed, rate))


def _jobs(maker: Maker, ask: Ask, block: int, seed: int, rate: float) -> Iterator[Job]:
    arrivals = random.Random(seed * 2 + 1)
    lengths = random.Random(seed * 2)
    shape = 1.0 / ask.burstiness**2
    now = 0.0
    source = maker(lengths, _Ids(), block)
    for number in range(ask.count):
        now += arrivals.gammavariate(shape, 1.0 / (rate * shape))
        prompt, output, blocks, session = next(source)
        asked = max(output, int(output * lengths.uniform(1.0, 2.0 * ask.asked_ratio - 1.0)))
        prompt, output, asked = fit(prompt, output, asked, ask.longest)
        yield Job(number, now, prompt, output, asked, blocks[: prompt // block], session)


def fit(prompt: int, output: int, asked: int, longest: int) -> tuple[int, int, int]:
    """Cut a request to what a node's context takes."""
    prompt = max(1, min(prompt, longest * 3 // 4))
    asked = max(1, min(asked, longest - prompt))
    return prompt, max(1, min(output, asked)), asked


def work_of(prompt: int, output: int) -> float:
    """Seconds of a node's time that a request takes, without a cache, in a batch of ``BATCH``."""
    return prompt / PREFILL + output * (BASE / BATCH + PER_SEQUENCE)


def _mean_work(maker: Maker, ask: Ask, block: int, seed: int) -> float:
    source = maker(random.Random(seed * 2), _Ids(), block)
    many = min(ask.count, 4000)
    total = 0.0
    for _ in range(many):
        prompt, output, _, _ = next(source)
        prompt, output, _ = fit(prompt, output, output, ask.longest)
        total += work_of(prompt, output)
    return total / many


def _lognormal(rng: random.Random, median: float, sigma: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(median), sigma)))


def _azure(rng: random.Random, ids: _Ids, block: int) -> Iterator[tuple[int, int, tuple[int, ...], bytes]]:
    while True:
        prompt = _lognormal(rng, 1020, 0.9)
        yield prompt, _lognormal(rng, 129, 0.9), (), b""


def _heavy(rng: random.Random, ids: _Ids, block: int) -> Iterator[tuple[int, int, tuple[int, ...], bytes]]:
    while True:
        prompt = round(120 * rng.paretovariate(1.1))
        yield min(prompt, 24_000), min(round(40 * rng.paretovariate(1.2)), 4000), (), b""


def _shared(rng: random.Random, ids: _Ids, block: int) -> Iterator[tuple[int, int, tuple[int, ...], bytes]]:
    groups = [ids.take(2048 // block) for _ in range(64)]
    weights = [1.0 / (rank + 1) for rank in range(len(groups))]
    while True:
        (head,) = rng.choices(groups, weights)
        yield 2048 + _lognormal(rng, 110, 0.5), _lognormal(rng, 220, 0.5), head, b""


def _sharegpt(rng: random.Random, ids: _Ids, block: int) -> Iterator[tuple[int, int, tuple[int, ...], bytes]]:
    # sigma 1.1 brings the means of the paper from these medians.
    def turn() -> tuple[int, int]:
        return _lognormal(rng, 88, 1.1), _lognormal(rng, 185, 1.1)

    return _conversations(rng, ids, block, turn, 150, 0.75)


def _mooncake(rng: random.Random, ids: _Ids, block: int) -> Iterator[tuple[int, int, tuple[int, ...], bytes]]:
    def turn() -> tuple[int, int]:
        return _quantile(rng, CONVERSATION_IN), _quantile(rng, CONVERSATION_OUT)

    return _conversations(rng, ids, block, turn, 60, 0.35, named=False)


def _conversations(
    rng: random.Random,
    ids: _Ids,
    block: int,
    turn: Callable[[], tuple[int, int]],
    open_at_once: int,
    go_on: float,
    named: bool = True,
) -> Iterator[tuple[int, int, tuple[int, ...], bytes]]:
    """Turns of many conversations, mixed; a prompt holds all the turns before it. Each goes on by ``go_on``."""
    live: list[tuple[int, tuple[int, ...], bytes]] = []  # tokens so far, blocks so far, name
    number = 0
    while True:
        if len(live) >= open_at_once or (live and rng.random() < go_on):
            so_far, blocks, name = live.pop(rng.randrange(len(live)))
        else:
            number += 1
            so_far, blocks, name = 0, (), b"conversation-%d" % number if named else b""
        new, output = turn()
        prompt = so_far + new
        blocks += ids.take(prompt // block - len(blocks))
        yield prompt, output, blocks, name
        if rng.random() < go_on and prompt + output < 24_000:
            live.append((prompt + output, blocks, name))


def _quantile(rng: random.Random, points: tuple[int, ...]) -> int:
    """A draw from a distribution of which the twentieths are known; tails go on for as far as the last step."""
    at = rng.random() * (len(points) + 1)
    low = int(at)
    below = points[low - 1] if low > 0 else max(1, points[0] // 2)
    above = points[low] if low < len(points) else 2 * points[-1]
    return round(below + (above - below) * (at - low))


KINDS: dict[str, tuple[Maker, int]] = {
    "azure": (_azure, 512),
    "heavy": (_heavy, 512),
    "shared": (_shared, 64),
    "sharegpt": (_sharegpt, 32),
    "mooncake": (_mooncake, 512),
}
"""Kind -> generator and tokens in a block of its prompts."""
