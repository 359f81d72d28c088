"""One rule's conditions, ready to be asked: plain comparisons first, the body last."""

from __future__ import annotations

from typing import Any, Final

from router_node.routes.facts import Facts
from router_node.routes.patterns import PatternSet, compile_one, from_glob
from router_node.routes.rules import Rule, Span, Words

LEAST: Final = -(2**31)
MOST: Final = 2**31


class WordTest:
    """Whether a text is one of some words."""

    __slots__ = ("exact", "only_exact", "patterns", "prefixes")

    def __init__(self, words: Words, where: str) -> None:
        self.exact = frozenset(words.exact)
        prefixes = list(words.prefix)
        patterns: list[Any] = [compile_one(pattern, f"{where}.regex") for pattern in words.regex]
        for glob in words.glob:
            kind, value = plainest("glob", glob)
            if kind == "exact":
                self.exact |= {value}
            elif kind == "prefix":
                prefixes.append(value)
            else:
                patterns.append(compile_one(value, f"{where}.glob"))
        self.prefixes = tuple(prefixes)
        self.patterns = tuple(patterns)
        self.only_exact = not prefixes and not patterns

    def __call__(self, text: str) -> bool:
        if text in self.exact:
            return True
        if self.only_exact:
            return False
        return text.startswith(self.prefixes) or any(pattern.fullmatch(text) for pattern in self.patterns)


def plainest(kind: str, value: str) -> tuple[str, str]:
    """The cheapest equal of a word: a glob without wildcards is exact, one with a single * at its end a prefix."""
    if kind != "glob":
        return kind, value
    bare = value.rstrip("*")
    if "*" in bare or "?" in bare:
        return "regex", from_glob(value)
    if bare != value:
        return "prefix", bare
    return "exact", value


class Conditions:
    """A compiled rule. Raises RouteError for a pattern that cannot be run."""

    __slots__ = (
        "content",
        "headers",
        "high",
        "last",
        "low",
        "model",
        "models",
        "needs_body",
        "order",
        "rule",
        "soonest",
        "streaming",
        "structured",
        "tenant",
        "tools",
    )

    def __init__(self, rule: Rule) -> None:
        when = rule.when
        where = f"route {rule.name!r}: when"
        self.rule = rule
        self.order = rule.order
        self.model = WordTest(when.model, f"{where}.model") if when.model is not None else None
        self.models = (
            tuple(dict.fromkeys(plainest(kind, value) for kind, value in when.model))
            if when.model is not None
            else (("any", ""),)
        )
        """Where the rule is found: cheapest kinds and values of its model names."""
        self.tenant = WordTest(when.tenant, f"{where}.tenant") if when.tenant is not None else None
        self.headers = tuple(
            (name.encode(), WordTest(words, f"{where}.headers.{name}")) for name, words in when.headers.items()
        )
        self.soonest, self.last = bounds(when.priority)
        self.low, self.high = bounds(when.prompt_tokens)
        self.streaming = when.streaming
        self.structured = when.structured
        self.tools = when.tools
        self.content = frozenset(when.content)
        for pattern in when.content:
            compile_one(pattern, f"{where}.content")
        self.needs_body = bool(self.content) or any(
            flag is not None for flag in (self.streaming, self.structured, self.tools)
        )

    def hold(self, facts: Facts, content: PatternSet) -> bool:
        """Whether all but the model's name fit a request."""
        if not self.low <= facts.tokens <= self.high or not self.soonest <= facts.priority <= self.last:
            return False
        if self.tenant is not None and not self.tenant(facts.tenant):
            return False
        for name, test in self.headers:
            value = facts.headers.get(name)
            if value is None or not test(value.decode("latin-1")):
                return False
        return not self.needs_body or self._body(facts, content)

    def _body(self, facts: Facts, content: PatternSet) -> bool:
        shape = facts.shape
        if self.streaming is not None and self.streaming != shape.streaming:
            return False
        if self.structured is not None and self.structured != shape.structured:
            return False
        if self.tools is not None and self.tools != shape.tools:
            return False
        return not self.content or not self.content.isdisjoint(facts.content(content))

    def failures(self, facts: Facts, content: PatternSet) -> list[str]:
        """Every condition that does not hold, for a person."""
        shape, when = facts.shape, self.rule.when
        out: list[str] = []
        if self.model is not None and not self.model(facts.model):
            out.append(f"model {facts.model!r} is not among its names")
        if self.tenant is not None and not self.tenant(facts.tenant):
            out.append(f"tenant {facts.tenant!r} is not among its tenants")
        for name, test in self.headers:
            value = facts.headers.get(name)
            if value is None:
                out.append(f"header {name.decode()} is missing")
            elif not test(value.decode("latin-1")):
                out.append(f"header {name.decode()} has another value")
        if not self.soonest <= facts.priority <= self.last:
            out.append(f"priority {facts.priority} is not {_span(when.priority)}")
        if not self.low <= facts.tokens <= self.high:
            out.append(f"{facts.tokens} prompt tokens are not {_span(when.prompt_tokens)}")
        for flag, wanted, found in (
            ("streaming", self.streaming, shape.streaming),
            ("structured", self.structured, shape.structured),
            ("tools", self.tools, shape.tools),
        ):
            if wanted is not None and wanted != found:
                out.append(f"{flag} is {str(found).lower()}")
        if self.content and self.content.isdisjoint(facts.content(content)):
            out.append("no content pattern is found in the prompt")
        return out


def bounds(span: Span | None) -> tuple[int, int]:
    """The least and the most that a span takes."""
    if span is None:
        return LEAST, MOST
    return (LEAST if span.min is None else span.min), (MOST if span.max is None else span.max)


def _span(span: Span | None) -> str:
    low, high = bounds(span)
    if low == LEAST:
        return f"at most {high}"
    return f"at least {low}" if high == MOST else f"{low} to {high}"
