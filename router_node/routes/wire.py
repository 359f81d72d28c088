"""How the table lies in the store: keys, and values that say whose they are. Pure: no I/O, no clock.

``laya:{cluster}:routes:head`` is a hash with format, lineage, number, digest and count of rules of the newest version;
``…:table`` a hash of all its rules by name; ``…:log`` a stream of the changes, whose entries have the version's number
for an id, so that a gap cannot go unseen. A rule or a change is ``hex(HMAC-SHA256) + "\\n" + JSON``, signed with the
cluster token as registrations are: who can write to the store but does not know the token cannot route a request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from router_node.routes.book import FORMAT, Book, Change
from router_node.routes.rules import RouteError, Rule, encode, from_json
from router_node.routes.slices import Steps

MAX_ENTRY: Final = 8 << 20  # bytes of one change
FIELDS: Final = ("format", "lineage", "number", "digest", "rules", "counted")  # of the head
LOG_LENGTH: Final = 1000  # changes that the store keeps, about
_RULE: Final = 30  # units of work to sign or read one rule
_SIGNATURE: Final = 64  # hex digits
_CONTEXT: Final = b"laya routes 1\0"


class Keys(NamedTuple):
    """The three keys of one cluster."""

    head: str
    table: str
    log: str


class Head(NamedTuple):
    """What the store says of its newest version."""

    format: str
    lineage: str
    number: int
    digest: str
    rules: int = 0  # how many there are at least


class Seal:
    """Signs and checks what is stored for one cluster."""

    __slots__ = ("_cluster", "_token")

    def __init__(self, cluster: str, token: bytes) -> None:
        self._cluster = cluster.encode()
        self._token = token

    def close(self, kind: bytes, payload: bytes) -> bytes:
        """The bytes to store; ``kind`` keeps values of different places apart."""
        return self._sign(kind, payload) + b"\n" + payload

    def open(self, kind: bytes, raw: bytes) -> bytes:
        """The payload. Raises RouteError for what was not made by this cluster for this place."""
        if len(raw) <= _SIGNATURE or raw[_SIGNATURE] != 0x0A or len(raw) > MAX_ENTRY:
            raise RouteError("it is not of Laya's making")
        payload = raw[_SIGNATURE + 1 :]
        if not hmac.compare_digest(raw[:_SIGNATURE], self._sign(kind, payload)):
            raise RouteError("it is signed with another cluster token, or for another place")
        return payload

    def rule(self, rule: Rule) -> bytes:
        """A rule, to store under its name."""
        return self.close(b"rule", encode(rule))

    def read_rule(self, name: str, raw: bytes) -> Rule:
        """The rule stored under a name. Raises RouteError."""
        rule = from_json(self.open(b"rule", raw))
        if rule.name != name:
            raise RouteError("it was stored under another name")
        return rule

    def table(self, rules: Mapping[str, Rule]) -> Steps[list[str | bytes]]:
        """Names and rules in turn, to store."""
        out: list[str | bytes] = []
        for name, rule in rules.items():
            out += (name, self.rule(rule))
            yield _RULE
        return out

    def change(self, lineage: str, change: Change) -> bytes:
        """A change, to store in the log of a lineage."""
        return self.close(b"change\0" + lineage.encode(), _encode_change(change))

    def read_change(self, lineage: str, raw: bytes) -> Change:
        """A change from the log. Raises RouteError."""
        try:
            return _decode_change(self.open(b"change\0" + lineage.encode(), raw))
        except msgspec.DecodeError as error:
            raise RouteError(f"it is not a change: {error}") from None

    def _sign(self, kind: bytes, payload: bytes) -> bytes:
        message = b"%s%s\0%s\0%s" % (_CONTEXT, self._cluster, kind, payload)
        return hmac.digest(self._token, message, hashlib.sha256).hex().encode()


_encode_change: Final = msgspec.json.Encoder().encode
_decode_change: Final = msgspec.json.Decoder(Change).decode


def keys_of(cluster: str) -> Keys:
    """The keys of a cluster's table."""
    base = f"laya:{cluster}:routes"
    return Keys(f"{base}:head", f"{base}:table", f"{base}:log")


def entry_id(number: int) -> str:
    """The id of a version's entry in the log."""
    return f"{number}-0"


def number_of(entry: bytes) -> int:
    """The version that an entry's id names; 0 for an id that is not of our making."""
    number, _, rest = entry.partition(b"-")
    return int(number) if rest == b"0" and number.isdigit() else 0


def read_head(values: Sequence[bytes | None]) -> Head | None:
    """The head from its ``FIELDS``, None where there is none. Raises RouteError for one that makes no sense."""
    if all(value is None for value in values):
        return None
    known, lineage, number, digest = ((value or b"").decode("ascii", "replace") for value in values[:4])
    if known != str(FORMAT):
        raise RouteError(
            f"the routes in the store are of format {known[:16]!r} and this router reads {FORMAT}: run the same version"
            " of Laya on all routers"
        )
    if not lineage or not number.isdigit():
        raise RouteError("the head of the routes in the store makes no sense: something else wrote it")
    rules, counted = ((value or b"").decode("ascii", "replace") for value in values[4:6])
    return Head(known, lineage, int(number), digest, int(rules) if rules.isdigit() and counted == number else 0)


def read_table(seal: Seal, head: Head, stored: Mapping[bytes, bytes]) -> Steps[tuple[Book, list[str]]]:
    """The version that the store holds, and why some of what lies there was left out."""
    rules: dict[str, Rule] = {}
    odd: list[str] = []
    for raw_name in stored:
        yield _RULE
        name = raw_name.decode("utf-8", "replace")
        try:
            rules[name] = seal.read_rule(name, stored[raw_name])
        except RouteError as error:
            odd.append(f"route {name[:128]!r} in the store was left out: {error}")
    return Book(head.lineage, head.number, head.digest, rules, partial=len(rules) < head.rules), odd
