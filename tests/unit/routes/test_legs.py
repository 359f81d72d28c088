"""Where a rule leads: weights, stickiness, fallbacks, and what nodes are told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from router_node.routes.legs import Legs
from router_node.routes.rules import RouteError, Rule, parse

CAPS = {"max_n": 16, "max_max_tokens": 1000}


def legs(*trees: dict[str, Any]) -> Legs:
    rules = [parse(tree) for tree in trees]
    return Legs(rules[0], {rule.name: rule for rule in rules}, CAPS)


def pools(made: Legs, session: bytes = b"") -> list[str]:
    return [leg.pool for leg in made.order(session)]


def test_shares_follow_the_weights() -> None:
    made = legs({"name": "a", "targets": [{"pool": "x", "weight": 9}, "y", {"pool": "off", "weight": 0}]})
    draws = iter(i / 1000 for i in range(1000))
    drawn = Counter(made.order(b"", lambda: next(draws))[0].pool for _ in range(1000))
    assert drawn == {"x": 900, "y": 100}
    sticky = Counter(pools(made, b"s%d" % i)[0] for i in range(5000))
    assert 0.08 < sticky["y"] / 5000 < 0.12
    assert "off" not in sticky


def test_a_session_keeps_its_target_and_a_new_weight_moves_only_who_must() -> None:
    before = legs({"name": "a", "targets": [{"pool": "x", "weight": 90}, {"pool": "y", "weight": 10}]})
    after = legs({"name": "a", "targets": [{"pool": "x", "weight": 80}, {"pool": "y", "weight": 20}]})
    sessions = [b"s%d" % i for i in range(3000)]
    assert all(pools(before, s) == pools(before, s) for s in sessions[:50])
    moved = [s for s in sessions if pools(before, s)[0] != pools(after, s)[0]]
    assert 0.06 < len(moved) / len(sessions) < 0.14
    assert all(pools(after, s)[0] == "y" for s in moved)


def test_fallbacks_come_after_in_their_order_and_each_once() -> None:
    made = legs(
        {"name": "a", "targets": "x", "fallback": ["y", {"route": "b"}, "x", "z"]},
        {"name": "b", "targets": ["q", {"pool": "r", "weight": 5}], "fallback": ["y", "last"]},
    )
    assert pools(made) == ["x", "y", "r", "q", "last", "z"]


def test_fallbacks_in_a_circle_are_refused_with_the_circle() -> None:
    with pytest.raises(RouteError, match="a -> b -> a"):
        legs(
            {"name": "a", "targets": "x", "fallback": {"route": "b"}},
            {"name": "b", "targets": "y", "fallback": {"route": "a"}},
        )
    with pytest.raises(RouteError, match="is no route"):
        legs({"name": "a", "targets": "x", "fallback": {"route": "b"}})


def test_clamps_go_beside_the_routers_own_caps() -> None:
    made = legs(
        {
            "name": "a",
            "targets": {
                "pool": "x",
                "defaults": {"temperature": 0.2, "max_tokens": 64},
                "clamps": {"max_tokens": {"max": 100}, "temperature": {"max": 1}},
            },
        }
    )
    (leg,) = made.order(b"")
    assert leg.clamps is not None
    assert msgspec.json.decode(leg.clamps) == {
        **CAPS,
        "temperature": {"default": 0.2, "max": 1.0},
        "max_tokens": {"default": 64, "max": 100},
    }
    assert [leg.new_tokens(asked, n) for asked, n in ((0, 1), (50, 1), (500, 1), (500, 3))] == [64, 50, 100, 300]


def test_a_leg_without_parameters_says_nothing() -> None:
    rule: Rule = parse({"name": "a", "targets": "x@rev"})
    (leg,) = Legs(rule, {}, CAPS).order(b"")
    assert leg.clamps is None and leg.pool_name == b"x" and leg.new_tokens(7, 1) == 7
