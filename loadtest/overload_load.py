"""The requests of the overload run: prompts of two kinds and known real lengths, sent at a pace or in a closed loop."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import aiohttp

CAP = 160  # new tokens at which an answer is taken to be without end, and its prompt left out
PATIENCE = 150.0  # seconds after which a client gives up
_THINGS = (
    "a river", "a bridge", "the moon", "bread", "a clock", "rain", "a library", "an engine", "a market", "glass",
    "a garden", "snow", "a lighthouse", "copper", "a train", "the sea", "a violin", "paper", "a harbour", "tea",
)  # fmt: skip
_ASKED = ("What is {}?", "Name two uses of {}.", "Why do people like {}?", "Write one sentence about {}.")
_FILLER = (
    "The council met in the morning and talked about {}. Some wanted to repair the old road first, others the school. "
    "A clerk wrote down what each of them said, and the chair asked for figures. In the end nothing was decided. "
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked. ``real`` is how many tokens its answer has by itself; 0 while that is not known."""

    text: str
    long: bool
    real: int = 0


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are seconds from its start; 0 for what never came."""

    long: bool
    status: int = 0
    first: float = 0.0
    total: float = 0.0
    ended: float = 0.0  # on the clock of the run
    tokens: int = 0
    finish: str = ""
    error: str = ""
    typed: bool = False  # a refusal with a reason and a time to come back

    @property
    def served(self) -> bool:
        """Answered in full."""
        return self.status == 200 and not self.error and self.finish in ("stop", "length")

    @property
    def refused(self) -> bool:
        """Told to come back later, before any answer."""
        return self.status in (429, 503)


def prompts(rng: random.Random, short: int, long: int) -> list[Prompt]:
    """So many different prompts of each kind: short ones of some 40 tokens, long ones of 400 to 900."""
    out = [Prompt(rng.choice(_ASKED).format(thing), False) for thing in rng.choices(_THINGS, k=4 * short)]
    out = list(dict.fromkeys(out))[:short]
    for number in range(long):
        parts = [_FILLER.format(rng.choice(_THINGS)) for _ in range(rng.randint(7, 16))]
        out.append(Prompt(f"Report {number}. {''.join(parts)}In one short sentence: what was decided?", True))
    return out


class Client:
    """Asks one server."""

    def __init__(self, address: str, model: str) -> None:
        self._url = f"http://{address}/v1/chat/completions"
        self._model = model
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=PATIENCE)
        )

    async def close(self) -> None:
        """Let the connections go."""
        await self._session.close()

    async def ask(self, prompt: Prompt, max_tokens: int) -> Outcome:
        """One streamed answer. Never raises for what the server does."""
        out = Outcome(prompt.long)
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt.text}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        begun = time.perf_counter()
        try:
            async with self._session.post(self._url, json=body) as answer:
                out.status = answer.status
                if answer.status == 200:
                    await self._read(answer, out, begun)
                else:
                    await _refusal(answer, out)
        except (aiohttp.ClientError, TimeoutError, ValueError) as e:
            out.error = f"{type(e).__name__}: {e}"
        out.ended = time.perf_counter()
        out.total = out.ended - begun
        return out

    async def _read(self, answer: aiohttp.ClientResponse, out: Outcome, begun: float) -> None:
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                out.error = json.dumps(event["error"])
                return
            for choice in event.get("choices", ()):
                if not out.first and choice["delta"].get("content"):
                    out.first = time.perf_counter() - begun
                out.finish = choice.get("finish_reason") or out.finish
            if event.get("usage"):
                out.tokens = event["usage"]["completion_tokens"]


async def _refusal(answer: aiohttp.ClientResponse, out: Outcome) -> None:
    raw = await answer.read()
    try:
        error = json.loads(raw)["error"]
        out.error = str(error.get("code") or error.get("type"))
        out.typed = bool(error["message"] and error["type"] and float(answer.headers["retry-after"]) > 0)
    except (ValueError, KeyError, TypeError):
        out.error = raw[:200].decode("utf-8", "replace")


async def lengths(client: Client, asked: Sequence[Prompt], at_once: int) -> list[Prompt]:
    """The prompts whose answers end by themselves, with their lengths."""
    left = list(asked)
    kept: list[Prompt] = []

    async def work() -> None:
        while left:
            prompt = left.pop()
            out = await client.ask(prompt, CAP)
            if out.finish == "stop" and out.tokens:
                kept.append(replace(prompt, real=out.tokens))

    await asyncio.gather(*(work() for _ in range(at_once)))
    return sorted(kept, key=lambda p: p.text)


async def capacity(client: Client, draw: Callable[[], Arrival], at_once: int, seconds: float) -> float:
    """Answers a second in a closed loop of so many clients, each drawing its next request when one is answered."""
    done = 0
    until = time.perf_counter() + seconds

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < until:
            arrival = draw()
            out = await client.ask(arrival.prompt, arrival.max_tokens)
            done += out.served and out.ended <= until

    await asyncio.gather(*(work() for _ in range(at_once)))
    return done / seconds


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the run: when, in seconds from its start, what, and how many tokens it asks for."""

    at: float
    prompt: Prompt
    max_tokens: int


class Mix:
    """Draws requests: a ``share`` of long prompts; each asks for one to two times what its answer really has."""

    def __init__(self, rng: random.Random, known: Sequence[Prompt], share: float) -> None:
        self._rng = rng
        self._short, self._long = [p for p in known if not p.long], [p for p in known if p.long]
        self._share = share if self._long else 0.0

    def draw(self, at: float = 0.0) -> Arrival:
        """A request for a time."""
        rng = self._rng
        prompt = rng.choice(self._long if rng.random() < self._share else self._short)
        return Arrival(at, prompt, max(1, round(prompt.real * rng.uniform(1.0, 2.0))))

    def stream(self, rate: float, seconds: float) -> list[Arrival]:
        """Poisson arrivals, ``rate`` a second."""
        out: list[Arrival] = []
        at = self._rng.expovariate(rate)
        while at < seconds:
            out.append(self.draw(at))
            at += self._rng.expovariate(rate)
        return out


async def replay(client: Client, plan: Sequence[Arrival]) -> tuple[list[Outcome], float]:
    """Send what was planned, whatever becomes of it; the outcomes, and when it began (on ``Outcome.ended``'s clock)."""
    tasks: list[asyncio.Task[Outcome]] = []
    begun = time.perf_counter()
    try:
        for arrival in plan:
            await asyncio.sleep(max(0.0, begun + arrival.at - time.perf_counter()))
            tasks.append(asyncio.create_task(client.ask(arrival.prompt, arrival.max_tokens)))
        return list(await asyncio.gather(*tasks)), begun
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
