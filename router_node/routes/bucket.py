"""The rules that a model's name has in common, in their order, and how the first that applies is found among many.

A few are asked one after the other. Many are narrowed first (see ``narrow``), and only what is left is asked, so that
the time hardly depends on how many rules there are that do not apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from router_node.routes.conditions import Conditions
from router_node.routes.facts import Facts
from router_node.routes.narrow import Narrow
from router_node.routes.patterns import PatternSet
from router_node.routes.slices import STRETCH, Steps

FEW: Final = 6


class Bucket:
    """Rules in the order in which they are tried. Never changed once made."""

    __slots__ = ("_narrow", "rules")

    def __init__(self, rules: Sequence[Conditions] = (), narrow: Narrow | None = None) -> None:
        self.rules = rules
        self._narrow = narrow

    @classmethod
    def of(cls, rules: Iterable[Conditions]) -> Steps[Bucket]:
        """A bucket of these rules, in any order."""
        ordered = yield from _sorted(list(rules))
        return cls(ordered, (yield from Narrow.of(ordered)) if len(ordered) > FEW else None)

    def first(self, facts: Facts, content: PatternSet) -> Conditions | None:
        """The first rule that applies."""
        rules = self.rules
        if self._narrow is None:
            for rule in rules:
                if rule.hold(facts, content):
                    return rule
            return None
        left = self._narrow.left(facts)
        by_body = False
        while left:
            low = left & -left
            rule = rules[low.bit_length() - 1]
            if rule.hold(facts, content):
                return rule
            left ^= low
            if rule.needs_body and not by_body and facts.looked:  # it has been read for this rule
                left = self._narrow.of_body(left, facts, content)
                by_body = True
        return None


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
