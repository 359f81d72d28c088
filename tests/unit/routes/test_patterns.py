"""Patterns: what RE2 takes, what is too dear, and what matches."""

from __future__ import annotations

import pytest

from router_node.routes.patterns import MAX_SECONDS, NameSets, PatternSet, compile_one, content_cost, from_glob
from router_node.routes.rules import RouteError
from router_node.routes.slices import whole


def test_a_malformed_pattern_is_named_with_its_fault() -> None:
    with pytest.raises(RouteError, match=r"route 'a': '\(' is no RE2 pattern: missing \)"):
        compile_one("(", "route 'a'")


def test_a_pattern_that_is_too_large_is_refused() -> None:
    with pytest.raises(RouteError, match="too dear to run"):
        compile_one("(" + "|".join(f"[a-z]{{{i}}}x[0-9]{{50}}" for i in range(40, 100)) + ")", "route 'a'")


def test_a_pattern_that_backtracks_elsewhere_costs_little_here() -> None:
    assert content_cost("(a+)+b") < MAX_SECONDS * 4


def test_a_glob_matches_as_a_whole() -> None:
    made = PatternSet([from_glob("a*c"), from_glob("x?[z]")], whole=True)
    assert made.match("abbc") == [0]
    assert made.match("xy[z]") == [1]
    assert made.match("xabbc") == []
    assert made.match("a\nc") == [0]


def test_a_set_searches_or_matches_as_it_was_told() -> None:
    assert PatternSet(["b.d"], whole=False).match(b"abcde") == [0]
    assert PatternSet(["b.d"], whole=True).match(b"abcde") == []
    assert PatternSet([], whole=False).match("x") == []


def test_any_number_of_names_patterns_is_found_among_and_parts_that_are_too_large_are_split() -> None:
    patterns = [f"x{i}-[a-z]{{900}}" for i in range(200)] + ["x7-.*", "none"]
    sets = whole(NameSets.of(patterns))
    assert sorted(sets.patterns) == sorted(patterns)
    assert sorted(sets.match("x7-" + "b" * 900)) == ["x7-.*", "x7-[a-z]{900}"]
    assert sets.match("x7") == [] and whole(NameSets.of([])).match("x") == []


def test_content_patterns_that_are_too_large_together_are_refused() -> None:
    with pytest.raises(RouteError, match="the 64 content patterns are too large together"):
        PatternSet([f"x{i}[a-z]{{1000}}[0-9]{{1000}}[a-z]{{900}}" for i in range(64)], whole=False)
