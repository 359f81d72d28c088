"""Rules as people read and write them: YAML, differences, one line each."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from router_node.routes.rules import Rule
    from shared.pb.laya.v1 import admin_pb2 as pb


def rules_in(path: str) -> list[Rule]:
    """The rules in a YAML file, ``-`` for standard input. Ends the process with 2 for what is none."""
    from router_node.routes.file import read, rules_of
    from router_node.routes.rules import RouteError
    from shared.config.loader import Loader

    try:
        if path != "-":
            return read(Path(path))
        import yaml

        try:
            tree = yaml.load(sys.stdin.read(), Loader)
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f" line {mark.line + 1}" if mark else ""
            why = getattr(error, "problem", None) or error
            raise ValueError(f"standard input{where}: not valid YAML: {why}") from None
        if isinstance(tree, dict):
            tree = tree["rules"] if tree.keys() == {"rules"} else [tree]
        return rules_of(tree if isinstance(tree, list) else [])
    except (RouteError, ValueError) as error:
        raise click.UsageError(str(error)) from None


def from_json(raw: str) -> Rule:
    """A rule that a router sent; one that this version does not know ends the process with 2."""
    from router_node.routes.rules import RouteError
    from router_node.routes.rules import from_json as parse

    try:
        return parse(raw.encode())
    except RouteError as error:
        raise click.UsageError(f"the router's rules are not of this version of Laya: {error}") from None


def to_yaml(rules: Sequence[Rule]) -> str:
    """Rules as a file would have them."""
    import yaml

    from router_node.routes.rules import to_plain

    plain = [to_plain(rule) for rule in rules]
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100) if plain else "[]\n"


def differences(before: Mapping[str, Rule], after: Mapping[str, Rule], names: tuple[str, str]) -> list[str]:
    """What changes from one table to the other, rule by rule, as ``diff -u`` shows it."""
    out: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        texts, labels = [], []
        for label, rule in zip(names, (old, new), strict=True):
            texts.append(to_yaml([rule]).splitlines() if rule is not None else [])
            labels.append(f"{label}/{name}" if rule is not None else "/dev/null")
        out += difflib.unified_diff(texts[0], texts[1], labels[0], labels[1], lineterm="", n=99)
    return out


def of_edits(edits: Sequence[pb.RouteEdit]) -> tuple[dict[str, Rule], dict[str, Rule]]:
    """The rules before and after a change."""
    before = {edit.name: from_json(edit.before_json) for edit in edits if edit.before_json}
    after = {edit.name: from_json(edit.after_json) for edit in edits if edit.after_json}
    return before, after


def summary(rule: Rule) -> tuple[str, str]:
    """A rule's conditions and targets, each in one line."""
    when = rule.when
    parts: list[str] = []
    for key, words in (("model", when.model), ("tenant", when.tenant), *when.headers.items()):
        if words is not None:
            shown = [value if kind == "exact" else f"{kind}:{value}" for kind, value in words]
            parts.append(f"{key}={'|'.join(shown[:3])}{'|…' if len(shown) > 3 else ''}")
    for key, span in (("priority", when.priority), ("tokens", when.prompt_tokens)):
        if span is not None:
            parts.append(f"{key}={'' if span.min is None else span.min}..{'' if span.max is None else span.max}")
    for key in ("streaming", "structured", "tools"):
        flag: Any = getattr(when, key)
        if flag is not None:
            parts.append(f"{key}={'yes' if flag else 'no'}")
    if when.content:
        parts.append(f"content~{len(when.content)}")
    targets = " ".join(f"{t.pool}:{t.weight}" if len(rule.targets) > 1 else t.pool for t in rule.targets)
    fallback = " > ".join(f.pool or f"route {f.route}" for f in rule.fallback)
    return " ".join(parts) or "any request", f"{targets} > {fallback}" if fallback else targets
