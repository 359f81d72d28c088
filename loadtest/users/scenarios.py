"""What users do, as plain generators: a scenario yields a call and is sent what became of it.

* ``chat``: a conversation of several turns in one session; each turn holds all before it, the answers included.
* ``extract``: a short text in, a few fields out, as JSON of a schema where the engine has that.
* ``summary``: a long text in, a paragraph out.
* ``cancel``: a client that goes away after a few tokens.
* ``slow``: a client that reads slower than the model writes.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import msgspec

from loadtest.users.call import Call, Outcome
from loadtest.users.text import words

Scenario = Generator[Call, Outcome, None]
_FILLED = 0.75
"""Share of the context that a prompt may take: a chat template and the tokenizer want the rest."""
_SYSTEMS = 8
_THINGS = (
    "the delivery",
    "an invoice",
    "our roof",
    "the new printer",
    "a refund",
    "the garden",
    "next week",
    "a recipe",
)
_ASKED = ("What should I know about {}?", "Tell me more about {}.", "Who takes care of {}?", "Why is {} late?")
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "city": {"type": "string"}, "total": {"type": "integer"}},
        "required": ["name", "city", "total"],
        "additionalProperties": False,
    }
)


class BadMix(ValueError):
    """A mix, a list of priorities or a file of keys that cannot be used: one sentence."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long prompts and answers are."""

    context: int = 0
    """Tokens of the model's context; 0 where it is not known."""
    scale: float = 1.0
    """Factor of the length of prompts."""
    max_tokens: int = 0
    """Most tokens of an answer; 0 leaves it to the scenario."""
    think: float = 0.2
    """Mean pause before a further turn of a chat, in seconds."""
    schema: bool = False
    """Whether the engine can hold an answer to a schema."""

    def answer(self, wanted: int) -> int:
        """Tokens to ask for."""
        most = min(wanted, self.max_tokens) if self.max_tokens else wanted
        return min(most, max(1, self.context // 4)) if self.context else most

    def prompt(self, wanted: float, answer: int) -> int:
        """Tokens that a prompt may have of those wanted."""
        most = max(1, round(wanted * self.scale))
        return max(1, min(most, int((self.context - answer) * _FILLED))) if self.context else most


def chat(rng: random.Random, sizes: Sizes) -> Scenario:
    """Two to six turns; one of a few long instructions stands before them."""
    session = f"load-{rng.getrandbits(64):016x}"
    answer = sizes.answer(min(256, round(rng.lognormvariate(4.2, 0.6))))
    turns = [("system", words(f"system {rng.randrange(_SYSTEMS)}", sizes.prompt(200, answer)))]
    for turn in range(rng.randint(2, 6)):
        asked = f"{rng.choice(_ASKED).format(rng.choice(_THINGS))} {words(str(rng.random()), sizes.prompt(30, answer))}"
        turns.append(("user", asked))
        if turn and sizes.context and _tokens(turns) > (sizes.context - answer) * _FILLED:
            return
        out = yield Call(
            name="chat",
            messages=tuple(turns),
            max_tokens=answer,
            session=session,
            pause=rng.expovariate(1 / sizes.think) if turn and sizes.think else 0.0,
            keep_text=True,
        )
        if not out.ok:
            return
        turns.append(("assistant", out.text or "Yes."))


def extract(rng: random.Random, sizes: Sizes) -> Scenario:
    """One short answer in a given form."""
    answer = sizes.answer(32)
    text = words(str(rng.random()), sizes.prompt(120, answer))
    asked = f"Order {rng.randrange(10_000)}: {text}. Give the name, the city and the total of this order as JSON."
    schema = SCHEMA if sizes.schema else ""
    yield Call(name="extract", messages=(("user", asked),), max_tokens=answer, schema=schema)


def summary(rng: random.Random, sizes: Sizes) -> Scenario:
    """One long prompt."""
    answer = sizes.answer(128)
    text = words(str(rng.random()), sizes.prompt(2000 * rng.lognormvariate(0, 0.4), answer))
    yield Call(name="summary", messages=(("user", f"Sum this up in a paragraph: {text}"),), max_tokens=answer)


def cancel(rng: random.Random, sizes: Sizes) -> Scenario:
    """Leaves early."""
    answer = sizes.answer(256)
    text = words(str(rng.random()), sizes.prompt(100, answer))
    leave = rng.randint(1, min(16, answer))
    yield Call(name="cancel", messages=(("user", f"Write about {text}"),), max_tokens=answer, leave_after=leave)


def slow(rng: random.Random, sizes: Sizes) -> Scenario:
    """Reads slowly."""
    answer = sizes.answer(64)
    text = words(str(rng.random()), sizes.prompt(100, answer))
    yield Call(name="slow", messages=(("user", f"Write about {text}"),), max_tokens=answer, read_delay=0.05)


SCENARIOS: dict[str, Callable[[random.Random, Sizes], Scenario]] = {
    "chat": chat,
    "extract": extract,
    "summary": summary,
    "cancel": cancel,
    "slow": slow,
}
MIX = "chat=4,extract=3,summary=1,cancel=1,slow=1"


def _tokens(turns: list[tuple[str, str]]) -> int:
    # An answer's tokens have four bytes or so, a word of ours has three.
    return sum(len(content) // 3 + 4 for _, content in turns)


def weights(text: str, what: str) -> dict[str, float]:
    """``a=2,b`` as weights. Raises BadMix."""
    out: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, weight = part.partition("=")
        try:
            value = float(weight or 1)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:
            raise BadMix(f"{what}: {part!r} is no name=weight with a weight of 0 or more")
        out[name.strip()] = value
    if not any(out.values()):
        raise BadMix(f"{what}: {text!r} names nothing with a weight above 0")
    return out


class Mix:
    """Draws scenarios, priorities and tenants by weight."""

    def __init__(self, scenarios: str = MIX, priorities: str = "0", keys: list[str] | None = None) -> None:
        """``keys`` are API keys, each of some tenant. Raises BadMix."""
        self._scenarios = weights(scenarios, "--scenarios")
        unknown = set(self._scenarios) - set(SCENARIOS)
        if unknown:
            raise BadMix(f"--scenarios: there is no {sorted(unknown)[0]!r}; there are {', '.join(SCENARIOS)}")
        given = weights(priorities, "--priorities")
        try:
            self._priorities = {int(name): weight for name, weight in given.items()}
        except ValueError:
            raise BadMix(
                f"--priorities: {priorities!r} is no list of whole numbers, each with =weight or not"
            ) from None
        self._keys = keys or [""]

    def key(self, number: int) -> str:
        """The key of a user: tenants take turns."""
        return self._keys[number % len(self._keys)]

    def draw(self, rng: random.Random, sizes: Sizes, key: str, lane: int) -> Scenario:
        """A scenario for a user with this key; all its calls have one priority."""
        [name] = rng.choices(list(self._scenarios), list(self._scenarios.values()))
        [priority] = rng.choices(list(self._priorities), list(self._priorities.values()))
        return asked_by(SCENARIOS[name](rng, sizes), key, lane, priority)


def asked_by(scenario: Scenario, key: str, lane: int, priority: int = 0) -> Scenario:
    """A scenario whose calls are those of one user."""
    try:
        call = next(scenario)
        while True:
            out = yield msgspec.structs.replace(call, priority=priority, key=key, lane=lane)
            call = scenario.send(out)
    except StopIteration:
        return


def keys_of(lines: Iterator[str] | list[str]) -> list[str]:
    """API keys, one a line; what is empty or begins with # is passed over. Raises BadMix."""
    out = [line.strip() for line in itertools.islice(lines, 100_000)]
    out = [line for line in out if line and not line.startswith("#")]
    for number, key in enumerate(out, 1):
        if not key.isascii() or " " in key:
            raise BadMix(f"--api-keys: key {number} has a space or a letter that no key has; write one key a line")
    return out
