"""Which of many rules a request leaves, without a look at each: numbers whose bits are rules, ANDed together.

Tenants and header values are looked up as a whole and by each length that prefixes have; sizes and priorities by
bisection; patterns run together. A rule with headers is found by one of them, so that the number of names in use does
not matter. What the body says is asked once it has been read for some rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from router_node.routes.conditions import LEAST, MOST, Conditions, WordTest
from router_node.routes.facts import Facts
from router_node.routes.patterns import NameSets, PatternSet
from router_node.routes.slices import STRETCH, Steps

_FLAGS: Final = ("streaming", "structured", "tools")

_Spans = tuple[list[int], list[int]]
_Test = Callable[[Conditions], WordTest | None]


class Values:
    """The rules left by a text: those that name it, a prefix or a pattern of it, and those that do not ask."""

    __slots__ = ("_exact", "_lengths", "_matched", "_patterns", "_prefixes", "_rest")

    def __init__(
        self, exact: dict[str, int], prefixes: dict[str, int], matched: dict[str, int], patterns: NameSets, rest: int
    ) -> None:
        self._exact = exact
        self._prefixes = prefixes
        self._lengths = sorted({len(prefix) for prefix in prefixes})
        self._matched = matched
        self._patterns = patterns
        self._rest = rest

    @classmethod
    def of(cls, rules: Iterable[tuple[int, Conditions]], test: _Test) -> Steps[Values]:
        """Of rules, each with its place."""
        exact: dict[str, int] = {}
        prefixes: dict[str, int] = {}
        matched: dict[str, int] = {}
        rest = 0
        for done, (at, rule) in enumerate(rules):
            words = test(rule)
            if words is None:
                rest |= 1 << at
            else:
                for value in words.exact:
                    exact[value] = exact.get(value, 0) | 1 << at
                for value in words.prefixes:
                    prefixes[value] = prefixes.get(value, 0) | 1 << at
                for one in words.patterns:
                    matched[one.pattern] = matched.get(one.pattern, 0) | 1 << at
            if not done % STRETCH:
                yield STRETCH
        for at, value in enumerate(exact):
            exact[value] |= rest
            if not at % STRETCH:
                yield STRETCH
        return cls(exact, prefixes, matched, (yield from NameSets.of(list(matched))), rest)

    def left(self, text: str) -> int:
        """The rules that a text leaves."""
        left = self._exact.get(text, self._rest)
        for length in self._lengths:
            if length > len(text):
                break
            left |= self._prefixes.get(text[:length], 0)
        if self._matched:
            for pattern in self._patterns.match(text):
                left |= self._matched[pattern]
        return left


class Narrow:
    """Of one bucket's rules, in their order."""

    __slots__ = ("_body", "_headers", "_no_header", "_priorities", "_tenants", "_tokens")

    def __init__(
        self,
        tenants: Values,
        tokens: _Spans,
        priorities: _Spans,
        headers: dict[bytes, Values],
        no_header: int,
        body: _Body | None,
    ) -> None:
        self._tenants = tenants
        self._tokens = tokens
        self._priorities = priorities
        self._headers = headers
        self._no_header = no_header
        self._body = body

    @classmethod
    def of(cls, rules: Sequence[Conditions]) -> Steps[Narrow]:
        """Made in slices."""
        tenants = yield from Values.of(enumerate(rules), lambda rule: rule.tenant)
        tokens = yield from _spans(rules, lambda rule: (rule.low, rule.high))
        priorities = yield from _spans(rules, lambda rule: (rule.soonest, rule.last))
        chosen, no_header = yield from _chosen(rules)
        headers: dict[bytes, Values] = {}
        for name, places in chosen.items():
            # Of those rules alone: a thousand names must not take a thousand looks at each rule.
            headers[name] = yield from Values.of(((at, rules[at]) for at in places), _header(name))
        return cls(tenants, tokens, priorities, headers, no_header, (yield from _Body.of(rules)))

    def left(self, facts: Facts) -> int:
        """A bit for each rule that may apply."""
        starts, masks = self._tokens
        left = masks[bisect_right(starts, facts.tokens) - 1]
        starts, masks = self._priorities
        if len(starts) > 1:
            left &= masks[bisect_right(starts, facts.priority) - 1]
        left &= self._tenants.left(facts.tenant)
        if self._headers:
            found, given = self._no_header, facts.headers
            for name in self._headers if len(self._headers) < len(given) else given:
                values, value = self._headers.get(name), given.get(name)
                if values is not None and value is not None:
                    found |= values.left(value.decode("latin-1"))
            left &= found
        return left

    def of_body(self, left: int, facts: Facts, content: PatternSet) -> int:
        """Those of the rules ``left`` that may apply by what the body says. It is read for this if need be."""
        return left if self._body is None else self._body.left(left, facts, content)


class _Body:
    """Rules by what they ask of a body."""

    __slots__ = ("_content", "_content_rest", "_flags")

    def __init__(self, flags: list[tuple[int, int]], content: dict[str, int], content_rest: int) -> None:
        self._flags = flags  # rules that a flag leaves where it is false, and where it is true
        self._content = content
        self._content_rest = content_rest

    @classmethod
    def of(cls, rules: Sequence[Conditions]) -> Steps[_Body | None]:
        """None where no rule asks anything."""
        if not any(rule.needs_body for rule in rules):
            return None
        flags: list[tuple[int, int]] = []
        for name in _FLAGS:
            no, yes = 0, 0
            for at, rule in enumerate(rules):
                wanted = getattr(rule, name)
                no |= (wanted is not True) << at
                yes |= (wanted is not False) << at
                if not at % STRETCH:
                    yield STRETCH
            flags.append((no, yes))
        content: dict[str, int] = {}
        rest = 0
        for at, rule in enumerate(rules):
            rest |= (not rule.content) << at
            for pattern in rule.content:
                content[pattern] = content.get(pattern, 0) | 1 << at
            if not at % STRETCH:
                yield STRETCH
        return cls(flags, content, rest)

    def left(self, left: int, facts: Facts, content: PatternSet) -> int:
        shape = facts.shape
        for (no, yes), flag in zip(self._flags, (shape.streaming, shape.structured, shape.tools), strict=True):
            left &= yes if flag else no
        if left & ~self._content_rest:  # the patterns are run only for a rule that asks
            found = self._content_rest
            for pattern in facts.content(content):
                found |= self._content.get(pattern, 0)
            left &= found
        return left


def _header(name: bytes) -> _Test:
    return lambda rule: next((test for at, test in rule.headers if at == name), None)


def _chosen(rules: Sequence[Conditions]) -> Steps[tuple[dict[bytes, list[int]], int]]:
    """The header by which each rule is found, and the rules for which there is none.

    It is that of whose values there are the most: the one that leaves the fewest.
    """
    values: dict[bytes, set[str]] = {}
    for at, rule in enumerate(rules):
        for name, test in rule.headers:
            said = (one.pattern for one in test.patterns)
            values.setdefault(name, set()).update(test.exact, test.prefixes, said)
        if not at % STRETCH:
            yield STRETCH
    chosen: dict[bytes, list[int]] = {}
    none = 0
    for at, rule in enumerate(rules):
        names = [name for name, _ in rule.headers]
        if names:
            chosen.setdefault(max(names, key=lambda name: (len(values[name]), name)), []).append(at)
        else:
            none |= 1 << at
        if not at % STRETCH:
            yield STRETCH
    return chosen, none


def _spans(rules: Sequence[Conditions], span: Callable[[Conditions], tuple[int, int]]) -> Steps[_Spans]:
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
