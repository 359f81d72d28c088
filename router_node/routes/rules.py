"""What a route is: its name, its place in the order, when it applies, and where it leads. Plain data, and its checks.

A rule is written as YAML or JSON and travels as JSON. Where several words may stand, one may stand alone:
``model: llama`` is ``model: {exact: [llama]}``, and a fallback may be the bare name of a pool.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from shared.params import REAL, WHOLE

MAX_RULES: Final = 20_000
MAX_WORDS: Final = 256  # values of one condition
MAX_WORD: Final = 256  # characters of a value
MAX_PATTERN: Final = 1024  # characters of a pattern
MAX_TARGETS: Final = 32
MAX_HEADERS: Final = 16  # conditions on headers in one rule
MAX_WEIGHT: Final = 1_000_000
MAX_PRIORITY: Final = 1_000_000
MAX_RULE_BYTES: Final = 64 << 10  # of one rule as JSON

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/\-]{0,127}")
_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~\-]{1,64}")
# What must not be written into a table that many can read.
_SECRET: Final = frozenset(("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"))


class RouteError(Exception):
    """A rule, or a table of them, that cannot be used: one sentence with the rule's name, the key and the fix."""


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A text must be one of these, or begin with one, or match one as a whole."""

    exact: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    glob: tuple[str, ...] = ()  # * for any text, ? for one character
    regex: tuple[str, ...] = ()  # RE2

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Kind and value of each."""
        for kind in ("exact", "prefix", "glob", "regex"):
            for value in getattr(self, kind):
                yield kind, value


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From ``min`` to ``max``, both included; absent is unbounded."""

    min: int | None = None
    max: int | None = None


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All that is set must hold. Empty applies to every request."""

    model: Words | None = None  # the name that the client asked for
    tenant: Words | None = None  # of the API key
    headers: dict[str, Words] = {}  # metadata or HTTP headers, by lower-case name
    priority: Span | None = None  # of the request; lower is earlier
    prompt_tokens: Span | None = None  # estimated
    streaming: bool | None = None
    structured: bool | None = None  # asks for output in a given form
    tools: bool | None = None  # offers tools
    content: tuple[str, ...] = ()  # RE2 patterns; one of them is found in the first 4 KB of the prompt


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of a sampling parameter: what is beyond becomes the bound."""

    min: float | None = None
    max: float | None = None


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pool and what changes on the way there. ``weight`` is its share beside the others of a rule."""

    pool: str  # model name, or name@revision
    weight: int = 1
    model: str = ""  # what the node is asked for; empty is the pool's own model
    defaults: dict[str, float] = {}  # sampling parameters of a request that names none
    clamps: dict[str, Limits] = {}


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where to go when what stands before is empty, full or failing: a pool, or all that another rule leads to."""

    pool: str = ""
    route: str = ""
    model: str = ""
    defaults: dict[str, float] = {}
    clamps: dict[str, Limits] = {}


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One route. Rules are tried by ``priority``, lower first, then by name; the first that applies is taken."""

    name: str
    targets: tuple[Target, ...]
    priority: int = 0
    when: When = When()
    fallback: tuple[Fallback, ...] = ()
    timeout: float | None = None  # seconds for the whole request
    max_attempts: int | None = None  # nodes tried for one request
    note: str = ""  # for people

    @property
    def order(self) -> tuple[int, str]:
        """Lower is tried first."""
        return (self.priority, self.name)


encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder(Rule).decode


def parse(tree: Any) -> Rule:
    """A rule from YAML's or JSON's plain values, checked by itself. Raises RouteError."""
    name = tree.get("name") if isinstance(tree, dict) else None
    where = f"route {name[:128]!r}" if isinstance(name, str) else "a route"
    if not isinstance(tree, dict):
        raise RouteError(f"{where} must be keys and values, not {type(tree).__name__}")
    try:
        rule = msgspec.convert(_spelled_out(tree), Rule)
    except msgspec.ValidationError as error:
        raise RouteError(f"{where}: {_said(str(error))}") from None
    check(rule)
    return rule


def from_json(raw: bytes) -> Rule:
    """A rule from the JSON that ``encode`` makes, checked by itself. Raises RouteError."""
    try:
        rule = _decode(raw)
    except msgspec.DecodeError as error:
        raise RouteError(f"not a route: {_said(str(error))}") from None
    check(rule)
    return rule


def to_plain(rule: Rule) -> dict[str, Any]:
    """A rule as plain values, for YAML."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(rule))
    when = plain.get("when", {})
    for key in ("model", "tenant"):
        if key in when:
            when[key] = _short(when[key])
    if "headers" in when:
        when["headers"] = {name: _short(words) for name, words in when["headers"].items()}
    return plain


def check(rule: Rule) -> None:
    """Raise RouteError for what makes no sense in a rule, whatever others there are."""
    if not _NAME.fullmatch(rule.name):
        raise RouteError(
            f"route {rule.name[:128]!r}: a name is 1 to 128 letters, digits and . _ : / -, beginning with a letter or"
            " digit"
        )
    try:
        _check_when(rule.when)
        _check_targets(rule)
        _need(abs(rule.priority) <= MAX_PRIORITY, "priority", f"must be -{MAX_PRIORITY} to {MAX_PRIORITY}")
        timeout, most = rule.timeout, rule.max_attempts
        _need(timeout is None or 0.001 <= timeout <= 86_400, "timeout", "must be 0.001 to 86400 seconds")
        _need(most is None or 1 <= most <= 16, "max_attempts", "must be 1 to 16")
        _need(len(rule.note) <= 1024, "note", "must be 1024 characters or fewer")
        _need(len(encode(rule)) <= MAX_RULE_BYTES, "the rule", f"is over {MAX_RULE_BYTES} bytes; split it")
    except RouteError as error:
        raise RouteError(f"route {rule.name!r}: {error}") from None


def _check_when(when: When) -> None:
    for key, words in (("model", when.model), ("tenant", when.tenant)):
        if words is not None:
            _check_words(f"when.{key}", words)
    _need(len(when.headers) <= MAX_HEADERS, "when.headers", f"at most {MAX_HEADERS} headers in one rule")
    for name, words in when.headers.items():
        _need(_HEADER.fullmatch(name) is not None, f"when.headers.{name[:64]}", "is no header name in lower case")
        _need(name not in _SECRET, f"when.headers.{name}", "carries secrets, which must not be in a rule; use tenant")
        _check_words(f"when.headers.{name}", words)
    for key, span in (("priority", when.priority), ("prompt_tokens", when.prompt_tokens)):
        if span is None:
            continue
        _need(span.min is not None or span.max is not None, f"when.{key}", "needs min or max")
        low, high = span.min, span.max
        _need(low is None or high is None or low <= high, f"when.{key}", "min is above max: it can never match")
        _need(all(v is None or abs(v) < 2**31 for v in (low, high)), f"when.{key}", "must fit into 32 bits")
    _need(len(when.content) <= 64, "when.content", "at most 64 patterns")
    for pattern in when.content:
        _need(0 < len(pattern) <= MAX_PATTERN, "when.content", f"a pattern has 1 to {MAX_PATTERN} characters")


def _check_words(key: str, words: Words) -> None:
    count = 0
    for kind, value in words:
        count += 1
        most = MAX_PATTERN if kind in ("glob", "regex") else MAX_WORD
        least = 0 if kind == "exact" else 1
        _need(least <= len(value) <= most, f"{key}.{kind}", f"a value has {least} to {most} characters")
        _need(value.isprintable(), f"{key}.{kind}", "a value must be printable")
    _need(count > 0, key, "lists nothing, so it can never match")
    _need(count <= MAX_WORDS, key, f"at most {MAX_WORDS} values; write more rules")


def _check_targets(rule: Rule) -> None:
    targets = rule.targets
    _need(bool(targets), "targets", "name at least one pool")
    _need(len(targets) <= MAX_TARGETS and len(rule.fallback) <= MAX_TARGETS, "targets", f"at most {MAX_TARGETS}")
    for i, target in enumerate(targets):
        _need(0 <= target.weight <= MAX_WEIGHT, f"targets[{i}].weight", f"must be 0 to {MAX_WEIGHT}")
        _check_leg(f"targets[{i}]", target)
    _need(any(target.weight for target in targets), "targets", "every weight is 0, so nothing can be chosen")
    pools = [(target.pool, target.model) for target in targets]
    _need(len(set(pools)) == len(pools), "targets", "names the same pool twice; give it the sum of the weights")
    for i, fallback in enumerate(rule.fallback):
        key = f"fallback[{i}]"
        _need(bool(fallback.pool) != bool(fallback.route), key, "names either a pool or a route")
        if fallback.pool:
            _check_leg(key, fallback)
        else:
            plain = not (fallback.model or fallback.defaults or fallback.clamps)
            _need(plain, key, "a route brings its own model, defaults and clamps; set them there")


def _check_leg(key: str, leg: Target | Fallback) -> None:
    for name, value in (("pool", leg.pool), ("model", leg.model)):
        ok = len(value) <= MAX_WORD and value.isprintable()
        _need(ok, f"{key}.{name}", f"at most {MAX_WORD} printable characters")
    _need(bool(leg.pool), f"{key}.pool", "names no pool")
    for parameter, default in leg.defaults.items():
        _check_number(f"{key}.defaults.{parameter}", parameter, default)
    for parameter, limits in leg.clamps.items():
        where = f"{key}.clamps.{parameter}"
        _need(limits.min is not None or limits.max is not None, where, "needs min or max")
        for bound in (limits.min, limits.max):
            if bound is not None:
                _check_number(where, parameter, bound)
        if limits.min is not None and limits.max is not None:
            _need(limits.min <= limits.max, where, "min is above max")


def _check_number(key: str, parameter: str, value: float) -> None:
    known = WHOLE | REAL
    _need(parameter in known, key, f"no such parameter; there are {', '.join(sorted(known))}")
    _need(math.isfinite(value) and abs(value) < 2**31, key, "must be a number of 32 bits")
    _need(parameter in REAL or value == int(value), key, "must be a whole number")


def _need(ok: bool, key: str, why: str) -> None:
    if not ok:
        raise RouteError(f"{key}: {why}")


def _spelled_out(tree: dict[Any, Any]) -> dict[Any, Any]:
    """The long form of what may be written short."""
    out = dict(tree)
    when = out.get("when")
    if isinstance(when, dict):
        when = dict(when)
        for key in ("model", "tenant"):
            if key in when:
                when[key] = _long(when[key])
        if isinstance(when.get("headers"), dict):
            when["headers"] = {_lower(name): _long(words) for name, words in when["headers"].items()}
        if isinstance(when.get("content"), str):
            when["content"] = [when["content"]]
        out["when"] = when
    for key in ("targets", "fallback"):
        value = out.get(key)
        if isinstance(value, str | dict):
            value = [value]
        if isinstance(value, list | tuple):
            out[key] = [{"pool": one} if isinstance(one, str) else one for one in value]
    return out


def _lower(name: Any) -> Any:
    return name.lower() if isinstance(name, str) else name


def _long(value: Any) -> Any:
    if isinstance(value, str):
        return {"exact": [value]}
    if isinstance(value, list):
        return {"exact": value}
    if isinstance(value, dict):
        return {kind: [words] if isinstance(words, str) else words for kind, words in value.items()}
    return value


def _short(words: dict[str, Any]) -> Any:
    plain = {kind: list(values) for kind, values in words.items()}
    if plain.keys() != {"exact"}:
        return plain
    exact: list[str] = plain["exact"]
    return exact[0] if len(exact) == 1 else exact


def _said(text: str) -> str:
    what, _, where = text.partition(" - at `$")
    where = where.rstrip("`").lstrip(".")
    what = what[:1].lower() + what[1:]
    return f"{where}: {what}" if where else what
