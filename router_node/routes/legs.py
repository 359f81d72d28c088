"""Where a rule leads: pools by weight, then those to fall back to, each with what changes on the way."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

from router_node.routes.rules import Fallback, RouteError, Rule, Target
from shared.params import REAL

_SPACE: Final = 2.0**64


class Leg:
    """A pool, and what its nodes are told over the request's body.

    ``clamps`` is the value of ``laya-clamps``, None where only the router's own caps hold.
    """

    __slots__ = ("clamps", "new_default", "new_least", "new_most", "pool", "pool_name", "rewrite", "seed", "weight")

    def __init__(self, target: Target | Fallback, caps: Mapping[str, int], weight: int = 0) -> None:
        self.pool = target.pool
        self.pool_name = target.pool.partition("@")[0].encode()
        self.rewrite = target.model.encode()
        self.weight = weight
        self.seed = xxh3_64_intdigest(f"{target.pool}\0{target.model}".encode())
        bounds = _bounds(target)
        self.clamps = msgspec.json.encode({**caps, **bounds}) if bounds else None
        new = bounds.get("max_tokens", {})
        self.new_default = int(new.get("default", 0))
        self.new_least = int(new.get("min", 0))
        self.new_most = int(new.get("max", 0))

    def new_tokens(self, asked: int, n: int) -> int:
        """New tokens to reserve for a request that asked for so many, for ``n`` sequences together; 0: the default."""
        n = max(1, n)
        if not asked:
            return self.new_default * n
        if self.new_most and asked > self.new_most * n:
            return self.new_most * n
        return max(asked, self.new_least * n)


class Legs:
    """A compiled rule's targets and fallbacks. Raises RouteError for fallbacks that go in a circle or nowhere."""

    __slots__ = ("fallback", "seed", "targets")

    def __init__(self, rule: Rule, rules: Mapping[str, Rule], caps: Mapping[str, int]) -> None:
        self.seed = xxh3_64_intdigest(rule.name.encode())
        self.targets: Sequence[Leg] = [Leg(target, caps, target.weight) for target in rule.targets if target.weight]
        self.fallback: Sequence[Leg] = [
            Leg(target, caps, target.weight if isinstance(target, Target) else 0)
            for target in _all_fallbacks(rule, rules)
        ]

    def order(self, session: bytes, draw: Callable[[], float] = random.random) -> Sequence[Leg]:
        """The legs to try for one request, one after the other. A session gets the same target every time."""
        targets = self.targets
        if len(targets) == 1:
            return [*targets, *self.fallback] if self.fallback else targets
        first = self._by_session(session) if session else self._by_draw(draw)
        return [first, *self.fallback]

    def _by_draw(self, draw: Callable[[], float]) -> Leg:
        left = draw() * sum(leg.weight for leg in self.targets)
        for leg in self.targets:
            left -= leg.weight
            if left < 0:
                return leg
        return self.targets[-1]

    def _by_session(self, session: bytes) -> Leg:
        """The highest score wins: a changed weight moves only those sessions that it must."""
        best = self.targets[0]
        most = -1.0
        for leg in self.targets:
            share = (xxh3_64_intdigest(session, self.seed ^ leg.seed) + 1) / (_SPACE + 1)
            score = -leg.weight / math.log(share) if share < 1.0 else math.inf
            if score > most:
                best, most = leg, score
        return best


def _all_fallbacks(rule: Rule, rules: Mapping[str, Rule]) -> Iterator[Target | Fallback]:
    """The fallbacks with other routes' pools in their places, each pool once."""
    seen: set[tuple[str, str]] = set()
    if len(rule.targets) == 1:  # of several, those not chosen may well serve
        seen.add((rule.targets[0].pool, rule.targets[0].model))
    for one in _walk(rule, rules, (rule.name,)):
        if (one.pool, one.model) not in seen:
            seen.add((one.pool, one.model))
            yield one


def _walk(rule: Rule, rules: Mapping[str, Rule], above: tuple[str, ...]) -> Iterator[Target | Fallback]:
    for fallback in rule.fallback:
        name = fallback.route
        if not name:
            yield fallback
            continue
        if name in above:
            circle = " -> ".join((*above[above.index(name) :], name))
            raise RouteError(f"route {rule.name!r}: its fallbacks go in a circle ({circle}); take one out")
        other = rules.get(name)
        if other is None:
            raise RouteError(f"route {rule.name!r}: its fallback {name!r} is no route; put that one first")
        yield from sorted((t for t in other.targets if t.weight), key=lambda target: -target.weight)
        yield from _walk(other, rules, (*above, name))


def _bounds(target: Target | Fallback) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for name, default in target.defaults.items():
        out.setdefault(name, {})["default"] = default if name in REAL else int(default)
    for name, limits in target.clamps.items():
        for key, value in (("min", limits.min), ("max", limits.max)):
            if value is not None:
                out.setdefault(name, {})[key] = value if name in REAL else int(value)
    return out
