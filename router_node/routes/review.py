"""Looks at a table as a whole before it is taken: what must not be is refused, what is likely a mistake is said."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from router_node.routes.conditions import Conditions, WordTest
from router_node.routes.legs import Legs
from router_node.routes.matcher import Matcher
from router_node.routes.patterns import MAX_CONTENT, MAX_SECONDS, content_cost
from router_node.routes.rules import MAX_RULES, RouteError, Rule
from router_node.routes.slices import STRETCH, Steps

_MAX_TOLD: Final = 20  # warnings
_MAX_LOOKS: Final = 40_000  # pairs of rules that are compared for one change
_CAPS: Final[Mapping[str, int]] = {}
_LEGS: Final = 20  # units of work to look at where a rule leads
_COMPARED: Final = 2  # and to compare two rules


def review(
    rules: Mapping[str, Rule], changed: Collection[str], matcher: Matcher, pools: Collection[str]
) -> Steps[list[str]]:
    """Warnings about a table in which the rules named ``changed`` are new. Raises RouteError when it cannot be used.

    ``matcher`` is made of the new table, ``pools`` are the names that nodes serve now.
    """
    if len(rules) > MAX_RULES:
        raise RouteError(f"{len(rules)} routes are more than {MAX_RULES}; merge some")
    patterns = matcher.content.patterns
    if len(patterns) > MAX_CONTENT:
        raise RouteError(f"{len(patterns)} content patterns are more than {MAX_CONTENT} in one table; take some out")
    touched = set(changed)
    for at, rule in enumerate(rules.values()):
        if rule.name in touched or any(fallback.route for fallback in rule.fallback):
            Legs(rule, rules, _CAPS)  # raises for circles and for routes that are not there
            yield _LEGS
        elif not at % STRETCH:
            yield STRETCH
    warnings: list[str] = []
    looks = _MAX_LOOKS
    for name in changed:
        conditions = matcher.rules.get(name)
        if conditions is None:
            continue
        warnings += _missing(conditions.rule, pools)
        if looks > 0:
            looks -= yield from _refuse_shadowed(conditions, matcher.near(conditions))
        if looks > 0:
            looks -= len(rules)  # narrower rules may lie anywhere
            warnings += yield from _shadowing(conditions, matcher.rules.values())
        if len(warnings) > _MAX_TOLD:
            break
        yield 1
    return warnings


def told(warnings: Sequence[str]) -> Sequence[str]:
    """No more of them than a person reads."""
    return [*warnings[:_MAX_TOLD], "and more of the kind"] if len(warnings) > _MAX_TOLD else warnings


def costs(rules: Iterable[Rule]) -> list[str]:
    """What each content pattern of these rules takes. Raises RouteError for one that takes too long.

    This takes long itself, most of it without the interpreter: call it from a thread.
    """
    return [warning for rule in rules for warning in _costs(rule)]


def _costs(rule: Rule) -> Iterable[str]:
    for pattern in rule.when.content:
        seconds = content_cost(pattern)
        if seconds > MAX_SECONDS:
            raise RouteError(
                f"route {rule.name!r}: when.content: {pattern[:80]!r} takes {seconds * 1e6:.0f} µs over 4 KB, more than"
                f" {MAX_SECONDS * 1e6:.0f}: it is too dear to run"
            )
        yield f"route {rule.name!r}: content pattern {pattern[:80]!r} takes up to {seconds * 1e6:.0f} µs of a request"


def _missing(rule: Rule, pools: Collection[str]) -> Iterable[str]:
    for pool in dict.fromkeys([*(t.pool for t in rule.targets), *(f.pool for f in rule.fallback if f.pool)]):
        if pool not in pools:
            yield (
                f"route {rule.name!r}: no node serves pool {pool!r} now; requests sent there get 503 until one does,"
                " or go to the fallbacks"
            )


def _refuse_shadowed(conditions: Conditions, near: Iterable[Conditions]) -> Steps[int]:
    """How many rules were looked at."""
    at = 0
    for at, other in enumerate(near, 1):
        if other.order < conditions.order and covers(other, conditions):
            raise RouteError(
                f"route {conditions.rule.name!r} can never match: route {other.rule.name!r} comes before it and takes"
                " all that it would; give it a lower priority number or narrower neighbours"
            )
        if not at % STRETCH:
            yield _COMPARED * STRETCH
    return at


def _shadowing(conditions: Conditions, rules: Iterable[Conditions]) -> Steps[list[str]]:
    out: list[str] = []
    for at, other in enumerate(rules, 1):
        if other.order > conditions.order and covers(conditions, other):
            out.append(
                f"route {other.rule.name!r} can never match now: {conditions.rule.name!r} takes all that it would"
            )
        if not at % STRETCH:
            yield _COMPARED * STRETCH
    return out


def covers(wide: Conditions, narrow: Conditions) -> bool:
    """Whether every request that ``narrow`` takes is one that ``wide`` takes too. False where that is not plain."""
    if wide.low > narrow.low or wide.high < narrow.high or wide.soonest > narrow.soonest or wide.last < narrow.last:
        return False
    for flag in ("streaming", "structured", "tools"):
        wanted = getattr(wide, flag)
        if wanted is not None and wanted != getattr(narrow, flag):
            return False
    if not _words_cover(wide.model, narrow.model) or not _words_cover(wide.tenant, narrow.tenant):
        return False
    narrow_headers = dict(narrow.headers)
    for name, test in wide.headers:
        if name not in narrow_headers or not _words_cover(test, narrow_headers[name]):
            return False
    return not wide.content or (bool(narrow.content) and narrow.content <= wide.content)


def _words_cover(wide: WordTest | None, narrow: WordTest | None) -> bool:
    if wide is None:
        return True
    if narrow is None:
        return False
    known = {pattern.pattern for pattern in wide.patterns}
    return (
        all(wide(text) for text in narrow.exact)
        and all(any(prefix.startswith(one) for one in wide.prefixes) for prefix in narrow.prefixes)
        and all(pattern.pattern in known for pattern in narrow.patterns)
    )
