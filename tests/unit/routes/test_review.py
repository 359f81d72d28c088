"""A table is looked at as a whole: shadowed rules, dear patterns, pools that are not there."""

from __future__ import annotations

from typing import Any

import pytest

from router_node.routes import review as module
from router_node.routes.conditions import Conditions
from router_node.routes.matcher import Matcher
from router_node.routes.review import costs, covers, review, told
from router_node.routes.rules import RouteError, parse
from router_node.routes.slices import whole


def look(*trees: dict[str, Any], changed: list[str] | None = None, pools: tuple[str, ...] = ("p",)) -> list[str]:
    rules = {tree["name"]: parse({"targets": "p", **tree}) for tree in trees}
    matcher = Matcher({name: Conditions(rule) for name, rule in rules.items()})
    names = changed or list(rules)
    warnings = costs([rules[name] for name in names])
    return list(told(warnings + whole(review(rules, names, matcher, pools))))


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ({}, {"model": "a"}, True),
        ({"model": "a"}, {}, False),
        ({"model": ["a", "b"]}, {"model": "a"}, True),
        ({"model": {"prefix": "a"}}, {"model": "abc"}, True),
        ({"model": {"prefix": "a"}}, {"model": {"prefix": "ab"}}, True),
        ({"model": {"prefix": "ab"}}, {"model": {"prefix": "a"}}, False),
        ({"model": {"glob": "a*"}}, {"model": "abc"}, True),
        ({"model": {"regex": "a.*"}}, {"model": {"regex": "a.*"}}, True),
        ({"model": {"regex": "a.*"}}, {"model": {"regex": "ab.*"}}, False),  # true, but not plain
        ({"prompt_tokens": {"max": 10}}, {"prompt_tokens": {"min": 2, "max": 10}}, True),
        ({"prompt_tokens": {"max": 10}}, {"prompt_tokens": {"min": 2}}, False),
        ({"streaming": True}, {"streaming": True}, True),
        ({"streaming": True}, {"streaming": False}, False),
        ({"headers": {"x": ["1", "2"]}}, {"headers": {"x": "1", "y": "2"}}, True),
        ({"headers": {"x": "1"}}, {"headers": {"y": "1"}}, False),
        ({"content": ["a", "b"]}, {"content": "a"}, True),
        ({"content": "a"}, {"content": ["a", "b"]}, False),
        ({"content": "a"}, {}, False),
        ({"tenant": "t"}, {"tenant": "t", "model": "a"}, True),
    ],
)
def test_a_rule_covers_another_where_it_takes_all_that_the_other_would(
    wide: dict[str, Any], narrow: dict[str, Any], covered: bool
) -> None:
    one, other = (Conditions(parse({"name": "x", "targets": "p", "when": when})) for when in (wide, narrow))
    assert covers(one, other) == covered


def test_a_rule_that_can_never_match_is_refused_and_one_that_is_silenced_is_said() -> None:
    with pytest.raises(RouteError, match="'b' can never match: route 'a' comes before it"):
        look({"name": "a", "when": {"model": {"prefix": "m"}}}, {"name": "b", "when": {"model": "mm"}})
    warnings = look(
        {"name": "a", "when": {"model": {"prefix": "m"}}, "priority": -1},
        {"name": "b", "when": {"model": "mm"}},
        changed=["a"],
    )
    assert warnings == ["route 'b' can never match now: 'a' takes all that it would"]


def test_pools_that_nobody_serves_are_warned_about() -> None:
    (warning,) = look({"name": "a", "targets": ["p", "q"], "fallback": "p"})
    assert "no node serves pool 'q' now" in warning


def test_content_patterns_are_costed_counted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    (warning,) = look({"name": "a", "when": {"content": "abc"}})
    assert "takes up to" in warning and "µs" in warning
    with pytest.raises(RouteError, match="65 content patterns are more than 64"):
        look(*({"name": f"r{i}", "priority": i, "when": {"content": [f"p{i}"]}} for i in range(65)))
    monkeypatch.setattr(module, "MAX_SECONDS", 0.0)
    with pytest.raises(RouteError, match="too dear to run"):
        look({"name": "a", "when": {"content": "abc"}})


def test_a_change_that_breaks_another_rule_is_refused() -> None:
    with pytest.raises(RouteError, match="'a': its fallback 'gone' is no route"):
        look(
            {"name": "a", "fallback": {"route": "gone"}},
            {"name": "z", "priority": -1, "when": {"model": "m"}},
            changed=["z"],
        )
