"""The rules that a model's name has in common, in their order, and how the first that applies is found among many.

A few are asked one after the other. Many are narrowed first: for each of tenant, sizes, priority and plain header
values, a number whose bits are the rules that the request's value leaves; ANDed together, only what is left is asked.
So the time hardly depends on how many rules there are that do not apply.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from router_node.routes.conditions import LEAST, MOST, Conditions, WordTest
from router_node.routes.facts import Facts
from router_node.routes.patterns import PatternSet
from router_node.routes.slices import STRETCH, Steps

FEW: Final = 6
_MAX_HEADERS: Final = 8  # header names by which rules are narrowed; the others are asked

_Masks = tuple[dict[str, int], int]
_Steps = tuple[list[int], list[int]]
_Header = tuple[bytes, dict[str, int], int]


class Bucket:
    """Rules in the order in which they are tried. Never changed once made."""

    __slots__ = ("_narrow", "rules")

    def __init__(self, rules: Sequence[Conditions] = (), narrow: _Narrow | None = None) -> None:
        self.rules = rules
        self._narrow = narrow

    @classmethod
    def of(cls, rules: Iterable[Conditions]) -> Steps[Bucket]:
        """A bucket of these rules, in any order."""
        ordered = yield from _sorted(list(rules))
        return cls(ordered, (yield from _Narrow.of(ordered)) if len(ordered) > FEW else None)

    def first(self, facts: Facts, content: PatternSet) -> Conditions | None:
        """The first rule that applies."""
        rules = self.rules
        if self._narrow is None:
            for rule in rules:
                if rule.hold(facts, content):
                    return rule
            return None
        left = self._narrow.left(facts)
        while left:
            low = left & -left
            rule = rules[low.bit_length() - 1]
            if rule.hold(facts, content):
                return rule
            left ^= low
        return None


class _Narrow:
    __slots__ = ("_headers", "_priorities", "_tenants", "_tokens")

    def __init__(self, tenants: _Masks, tokens: _Steps, priorities: _Steps, headers: tuple[_Header, ...]) -> None:
        self._tenants = tenants
        self._tokens = tokens
        self._priorities = priorities
        self._headers = headers

    @classmethod
    def of(cls, rules: Sequence[Conditions]) -> Steps[_Narrow]:
        tenants = yield from _words(rules, lambda rule: _exact(rule.tenant))
        tokens = yield from _ranges(rules, lambda rule: (rule.low, rule.high))
        priorities = yield from _ranges(rules, lambda rule: (rule.soonest, rule.last))
        headers: list[_Header] = []
        for name in (yield from _names(rules)):
            headers.append((name, *(yield from _words(rules, _header(name)))))
        return cls(tenants, tokens, priorities, tuple(headers))

    def left(self, facts: Facts) -> int:
        """A bit for each rule that may apply."""
        table, other = self._tenants
        left = table.get(facts.tenant, other)
        starts, masks = self._tokens
        left &= masks[bisect_right(starts, facts.tokens) - 1]
        starts, masks = self._priorities
        if len(starts) > 1:
            left &= masks[bisect_right(starts, facts.priority) - 1]
        for name, by_value, rest in self._headers:
            value = facts.headers.get(name)
            left &= rest if value is None else by_value.get(value.decode("latin-1"), rest)
        return left


def _exact(test: WordTest | None) -> frozenset[str] | None:
    """The only texts that a test lets pass, None when others may pass too."""
    return test.exact if test is not None and test.only_exact else None


def _header(name: bytes) -> Callable[[Conditions], frozenset[str] | None]:
    return lambda rule: next((_exact(test) for at, test in rule.headers if at == name), None)


def _sorted(rules: list[Conditions]) -> Steps[list[Conditions]]:
    """By their order. In runs first, so that what is left for the end is to merge them."""
    out: list[Conditions] = []
    for start in range(0, len(rules), STRETCH):
        out += sorted(rules[start : start + STRETCH], key=_order)
        yield STRETCH
    out.sort(key=_order)
    yield len(out)
    return out


def _order(rule: Conditions) -> tuple[int, str]:
    return rule.order


def _names(rules: Sequence[Conditions]) -> Steps[list[bytes]]:
    """The header names that most rules ask for."""
    counts: dict[bytes, int] = {}
    for at, rule in enumerate(rules):
        for name, test in rule.headers:
            if test.only_exact:
                counts[name] = counts.get(name, 0) + 1
        if not at % STRETCH:
            yield STRETCH
    return sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_HEADERS]


def _words(rules: Sequence[Conditions], values: Callable[[Conditions], frozenset[str] | None]) -> Steps[_Masks]:
    """The rules left by each text that any of them names, and those left by every other text."""
    own: dict[str, int] = {}
    rest = 0
    for at, rule in enumerate(rules):
        names = values(rule)
        if names is None:
            rest |= 1 << at
        else:
            for name in names:
                own[name] = own.get(name, 0) | 1 << at
        if not at % STRETCH:
            yield STRETCH
    for at, name in enumerate(own):
        own[name] |= rest
        if not at % STRETCH:
            yield STRETCH
    return own, rest


def _ranges(rules: Sequence[Conditions], span: Callable[[Conditions], tuple[int, int]]) -> Steps[_Steps]:
    """Where the set of spans around a number changes, and from each such place on, the spans that hold it."""
    events: dict[int, int] = {LEAST: 0}
    for at, rule in enumerate(rules):
        low, high = span(rule)
        events[low] = events.get(low, 0) ^ 1 << at
        if high < MOST:
            events[high + 1] = events.get(high + 1, 0) ^ 1 << at
        if not at % STRETCH:
            yield 2 * STRETCH
    starts = sorted(events)
    yield len(starts) // 4  # numbers, mostly in order
    masks: list[int] = []
    mask = 0
    for at, start in enumerate(starts):
        mask ^= events[start]
        masks.append(mask)
        if not at % STRETCH:
            yield STRETCH
    return starts, masks
