"""Versions of the table: what a change makes, what undoes it, and what does not follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.routes.book import Book, Op, Put, Remove, applied, back
from router_node.routes.rules import RouteError, Rule, Target

ops = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 3)), min_size=1, max_size=3)


def rule(name: str, pool: object = "p") -> Rule:
    return Rule(name, (Target(str(pool)),))


def test_a_change_makes_the_next_version_and_says_how_to_undo_it() -> None:
    book = Book.begun({"a": rule("a"), "b": rule("b")})
    change = book.change([Put(rule("a", "q")), Remove("b"), Put(rule("c"))], "me", "why", 5.0)
    assert change is not None
    assert (change.number, change.author, change.note, change.at) == (2, "me", "why", 5.0)
    after = book.after(change)
    assert (after.number, after.lineage, sorted(after.rules)) == (2, book.lineage, ["a", "c"])
    assert applied(after.rules, change.undo) == book.rules
    assert sorted(book.rules) == ["a", "b"]


def test_what_changes_nothing_is_no_change() -> None:
    book = Book.begun({"a": rule("a")})
    assert book.change([Put(rule("a"))], "me") is None
    assert book.replacing([rule("a")]) == []


def test_unknown_and_repeated_names_are_refused() -> None:
    book = Book.begun({"a": rule("a")})
    with pytest.raises(RouteError, match="'b' does not exist; there are a"):
        book.change([Remove("b")], "me")
    with pytest.raises(RouteError, match="twice"):
        book.change([Put(rule("x")), Put(rule("x", "q"))], "me")
    with pytest.raises(RouteError, match="twice"):
        book.replacing([rule("x"), rule("x", "q")])


def test_a_change_of_another_version_or_another_past_does_not_follow() -> None:
    one, two = Book.begun({"a": rule("a")}), Book.begun({"a": rule("a")})
    change = one.change([Put(rule("b"))], "me")
    assert change is not None
    with pytest.raises(RouteError, match="does not follow"):
        two.after(change)
    with pytest.raises(RouteError, match="does not follow"):
        one.after(change) and one.after(change).after(change)
    assert not one.same_as(two) and one.same_as(one)


@given(st.lists(ops, min_size=1, max_size=6), st.integers(0, 6))
def test_going_back_leads_to_any_earlier_version(steps: list[list[tuple[str, int | None]]], to: int) -> None:
    book = Book.begun({})
    versions, changes = {book.number: book.rules}, []
    for step in steps:
        wish: dict[str, Op] = {}
        for name, pool in step:
            if pool is not None:
                wish[name] = Put(rule(name, pool))
            elif name in book.rules:
                wish[name] = Remove(name)
        change = book.change(wish.values(), "me")
        if change is not None:
            book = book.after(change)
            changes.append(change)
            versions[book.number] = book.rules
    number = min(to, len(changes)) + 1
    assert applied(book.rules, back(changes, number)) == versions[number]
