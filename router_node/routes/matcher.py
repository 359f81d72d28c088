"""Finds the rule for a request among thousands: by the model's name first, then by the rest.

Every rule lies in a bucket for each model name, prefix or pattern that it lists, or in the one for any model. A name
leads to a few buckets: one look-up for the name itself, one for each length that prefixes have, one pass of RE2 over
all patterns together, and the one for any. Which these are is remembered for the names of late. The best of the
buckets' first rules wins.

A matcher is never changed. A new one takes over from the old whatever buckets the changed rules do not touch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from router_node.routes.bucket import Bucket
from router_node.routes.conditions import Conditions
from router_node.routes.facts import Facts
from router_node.routes.patterns import NameSets, PatternSet
from router_node.routes.slices import Steps, whole

REMEMBERED: Final = 4096  # names whose buckets are known without a look

_Key = tuple[str, str]
_ANY: Final[_Key] = ("any", "")
_NO_RULES: Final = Bucket()


class Matcher:
    """``rules`` by name are all there are. ``before`` shares what did not change, and ``changed`` names what may have.

    With both, the time to make one depends on what has changed more than on how many rules there are.
    """

    __slots__ = ("_any", "_buckets", "_exact", "_known", "_lengths", "_patterns", "content", "reads_body", "rules")

    def __init__(
        self,
        rules: dict[str, Conditions],
        before: Matcher | None = None,
        changed: Collection[str] | None = None,
    ) -> None:
        whole(self._made(rules, before, changed))

    @classmethod
    def of(
        cls, rules: dict[str, Conditions], before: Matcher | None = None, changed: Collection[str] | None = None
    ) -> Steps[Matcher]:
        """As the constructor, in slices."""
        matcher = cls.__new__(cls)
        yield from matcher._made(rules, before, changed)
        return matcher

    def _made(
        self, rules: dict[str, Conditions], before: Matcher | None, changed: Collection[str] | None
    ) -> Steps[None]:
        self.rules = rules
        old = before.rules if before is not None else {}
        names = changed if changed is not None and before is not None else old.keys() | rules.keys()
        differ = [name for name in names if old.get(name) is not rules.get(name)]
        gone = [old[name] for name in differ if name in old]
        come = [rules[name] for name in differ if name in rules]
        yield len(differ)
        self._buckets, touched = yield from self._filled(before, gone, come)
        kinds = {kind for kind, _ in touched}
        self._any = self._buckets.get(_ANY, _NO_RULES)
        if before is None or "exact" in kinds:
            exact = dict(before._exact) if before is not None else {}
            for kind, value in touched:
                if kind == "exact":
                    exact.pop(value, None)
                    if (kind, value) in self._buckets:
                        exact[value] = self._buckets[kind, value]
            self._exact: dict[str, Bucket] = exact
        else:
            self._exact = before._exact
        if before is None or "prefix" in kinds:
            self._lengths: list[int] = sorted({len(value) for kind, value in self._buckets if kind == "prefix"})
        else:
            self._lengths = before._lengths
        if before is None or "regex" in kinds:
            patterns = sorted(value for kind, value in self._buckets if kind == "regex")
            same = before is not None and list(before._patterns.patterns) == patterns
            self._patterns: NameSets = before._patterns if before and same else (yield from NameSets.of(patterns))
        else:
            self._patterns = before._patterns
        if before is None or any(rule.needs_body for rule in (*gone, *come)):
            wanted = sorted({pattern for rule in rules.values() for pattern in rule.content})
            same = before is not None and list(before.content.patterns) == wanted
            self.content: PatternSet = before.content if before and same else PatternSet(wanted, whole=False)
            self.reads_body: bool = any(rule.needs_body for rule in rules.values())
            """Some rule asks what the body of a request says."""
        else:
            self.content = before.content
            self.reads_body = before.reads_body
        self._known: dict[str, tuple[Bucket, ...]] = {}

    @staticmethod
    def _filled(
        before: Matcher | None, gone: Iterable[Conditions], come: Iterable[Conditions]
    ) -> Steps[tuple[dict[_Key, Bucket], Collection[_Key]]]:
        """The buckets, and the keys of those that are not as before."""
        buckets = dict(before._buckets) if before is not None else {}
        touched: dict[_Key, dict[str, Conditions]] = {}

        def at(key: _Key) -> dict[str, Conditions]:
            found = touched.get(key)
            if found is None:
                bucket = buckets.get(key, _NO_RULES)
                found = touched[key] = {rule.rule.name: rule for rule in bucket.rules}
            return found

        yield len(buckets) // 4
        for rule in gone:
            for key in rule.models:
                new = key not in touched
                at(key).pop(rule.rule.name, None)
                yield len(touched[key]) if new else 1
        for rule in come:
            for key in rule.models:
                new = key not in touched
                at(key)[rule.rule.name] = rule
                yield len(touched[key]) if new else 1
        for key, members in touched.items():
            if members:
                buckets[key] = yield from Bucket.of(members.values())
            else:
                buckets.pop(key, None)
        return buckets, touched.keys()

    def match(self, facts: Facts) -> Conditions | None:
        """The rule that a request falls under, None for none."""
        buckets = self._known.get(facts.model)
        if buckets is None:
            buckets = self._remember(facts.model)
        best: Conditions | None = None
        for bucket in buckets:
            found = bucket.first(facts, self.content)
            if found is not None and (best is None or found.order < best.order):
                best = found
        return best

    def of_model(self, name: str) -> tuple[Bucket, ...]:
        """The buckets of a model's name."""
        found = [self._exact[name]] if name in self._exact else []
        for length in self._lengths:
            if length > len(name):
                break
            bucket = self._buckets.get(("prefix", name[:length]))
            if bucket is not None:
                found.append(bucket)
        found += [self._buckets["regex", pattern] for pattern in self._patterns.match(name)]
        if self._any.rules:
            found.append(self._any)
        return tuple(found)

    def near(self, rule: Conditions) -> Iterator[Conditions]:
        """Rules that share a way to be found with ``rule``: those for any model, and those for its names.

        One that shares several may come more than once.
        """
        found: dict[int, Bucket] = {}
        for kind, value in rule.models:
            buckets = self.of_model(value) if kind in ("exact", "prefix") else (self._any,)
            own = self._buckets.get((kind, value))
            found.update((id(one), one) for one in (*buckets, own) if one is not None)
        return (other for bucket in found.values() for other in bucket.rules)

    def exact_names(self) -> Collection[str]:
        """Model names that rules name in full."""
        return self._exact.keys()

    def _remember(self, name: str) -> tuple[Bucket, ...]:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        found = self._known[name] = self.of_model(name)
        return found
