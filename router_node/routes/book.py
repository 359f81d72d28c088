"""The table of rules as it is kept: a lineage, a number that each change raises by one, and the rules by name.

A lineage begins when a table is first written and stays for as long as each version came from the one before. The
digest chains all changes of a lineage, so two tables with the same lineage, number and digest are the same table, and
two that fell apart say so. Plain data; nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from router_node.routes.rules import RouteError, Rule, encode

FORMAT: Final = 1  # of what is written for others to read


class Put(msgspec.Struct, frozen=True, tag="put", tag_field="op"):
    """A rule is new, or takes the place of the one of its name."""

    rule: Rule

    @property
    def name(self) -> str:
        return self.rule.name


class Remove(msgspec.Struct, frozen=True, tag="rm", tag_field="op"):
    """A rule is gone."""

    name: str


Op = Put | Remove


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What made version ``number`` of the one before, who asked for it and when (seconds since the epoch).

    ``undo`` leads back. ``digest`` is that of the version made.
    """

    number: int
    ops: tuple[Op, ...]
    undo: tuple[Op, ...]
    author: str
    at: float
    note: str = ""
    digest: str = ""


_encode_ops: Final = msgspec.json.Encoder(order="deterministic").encode


class Book:
    """One version of the table. Never changed."""

    __slots__ = ("digest", "lineage", "number", "partial", "rules")

    def __init__(
        self, lineage: str, number: int, digest: str, rules: Mapping[str, Rule], *, partial: bool = False
    ) -> None:
        self.partial = partial
        """Some of its rules could not be read: good enough to go by, and not to be kept or told to others."""
        self.lineage = lineage
        self.number = number
        self.digest = digest
        self.rules = rules

    @classmethod
    def empty(cls) -> Book:
        """Before anything was written: no lineage, number 0."""
        return cls("", 0, "", {})

    @classmethod
    def begun(cls, rules: Mapping[str, Rule]) -> Book:
        """Version 1 of a new lineage."""
        lineage = uuid.uuid4().hex[:16]
        return cls(lineage, 1, chained(lineage, [Put(rules[name]) for name in sorted(rules)]), rules)

    def same_as(self, other: Book) -> bool:
        """Whether both are the same version of the same table."""
        return (self.lineage, self.number, self.digest) == (other.lineage, other.number, other.digest)

    def change(self, ops: Iterable[Op], author: str, note: str = "", now: float | None = None) -> Change | None:
        """The change that these operations make, None when they change nothing. Raises RouteError for an unknown name.

        A name may come up once.
        """
        taken: dict[str, Op] = {}
        undo: list[Op] = []
        for op in ops:
            if op.name in taken:
                raise RouteError(f"route {op.name!r} comes up twice in one change; keep one")
            old = self.rules.get(op.name)
            if old is None and isinstance(op, Remove):
                known = ", ".join(sorted(self.rules)[:20]) or "none"
                raise RouteError(f"route {op.name!r} does not exist; there are {known}")
            if isinstance(op, Put) and op.rule == old:
                continue
            taken[op.name] = op
            undo.append(Put(old) if old is not None else Remove(op.name))
        if not taken:
            return None
        made = tuple(taken.values())
        return Change(
            number=self.number + 1,
            ops=made,
            undo=tuple(undo),
            author=author,
            at=time.time() if now is None else now,
            note=note,
            digest=chained(self.digest, made),
        )

    def after(self, change: Change) -> Book:
        """The version that a change makes of this one. Raises RouteError when it is not of this one."""
        if change.number != self.number + 1 or change.digest != chained(self.digest, change.ops):
            raise RouteError(f"change {change.number} does not follow version {self.number}")
        rules = applied(self.rules, change.ops)
        return Book(self.lineage, change.number, change.digest, rules, partial=self.partial)

    def replacing(self, rules: Iterable[Rule]) -> list[Op]:
        """The operations that make these rules all there are. Raises RouteError for a name that comes twice."""
        wanted: dict[str, Rule] = {}
        for rule in rules:
            if rule.name in wanted:
                raise RouteError(f"route {rule.name!r} is there twice; give each a name of its own")
            wanted[rule.name] = rule
        ops: list[Op] = [Remove(name) for name in sorted(self.rules.keys() - wanted.keys())]
        ops += [Put(rule) for name, rule in wanted.items() if self.rules.get(name) != rule]
        return ops


def applied(rules: Mapping[str, Rule], ops: Iterable[Op]) -> dict[str, Rule]:
    """The rules after some operations."""
    out = dict(rules)
    for op in ops:
        if isinstance(op, Put):
            out[op.rule.name] = op.rule
        else:
            out.pop(op.name, None)
    return out


def chained(digest: str, ops: Sequence[Op]) -> str:
    """The digest of the version that some operations make of one with ``digest``."""
    return hashlib.blake2b(digest.encode() + b"\0" + _encode_ops(ops), digest_size=16).hexdigest()


def back(changes: Iterable[Change], to: int) -> list[Op]:
    """The operations that undo every change after version ``to``, each name once; ``changes`` in rising order."""
    out: dict[str, Op] = {}
    for change in changes:
        if change.number > to:
            for op in change.undo:
                out.setdefault(op.name, op)  # the oldest of them is how it was
    return list(out.values())


def size(rules: Mapping[str, Rule]) -> int:
    """Bytes of all rules as JSON."""
    return sum(len(encode(rule)) for rule in rules.values())
