"""What lies in the store is believed only where it was written by this cluster for this place."""

from __future__ import annotations

import pytest

from router_node.routes.book import FORMAT, Book, Put
from router_node.routes.rules import RouteError
from router_node.routes.slices import whole
from router_node.routes.wire import Head, Seal, entry_id, number_of, read_head, read_table
from tests.support.routes import rule

SEAL = Seal("c", b"token")


def test_rules_and_changes_come_back() -> None:
    one = rule("a", when={"model": "é"})
    assert SEAL.read_rule("a", SEAL.rule(one)) == one
    change = Book.begun({}).change([Put(one)], "me", "why")
    assert change is not None
    assert SEAL.read_change("L", SEAL.change("L", change)) == change


@pytest.mark.parametrize("other", [Seal("c", b"other"), Seal("d", b"token")])
def test_another_token_or_cluster_is_refused(other: Seal) -> None:
    with pytest.raises(RouteError, match="signed"):
        other.read_rule("a", SEAL.rule(rule("a")))


def test_what_was_moved_cut_or_made_up_is_refused() -> None:
    raw = SEAL.rule(rule("a"))
    with pytest.raises(RouteError, match="another name"):
        SEAL.read_rule("b", raw)
    change = Book.begun({}).change([Put(rule("a"))], "me")
    assert change is not None
    with pytest.raises(RouteError, match="another place"):
        SEAL.read_change("M", SEAL.change("L", change))
    for bad in (b"", b"junk", raw[:-1], raw.replace(b'"p"', b'"q"'), b"0" * 64 + b"\n{}"):
        with pytest.raises(RouteError):
            SEAL.read_rule("a", bad)


def test_a_head_is_read_or_said_to_make_no_sense() -> None:
    assert read_head([None] * 6) is None
    assert read_head([b"%d" % FORMAT, b"L", b"7", b"d", None, None]) == Head(str(FORMAT), "L", 7, "d")
    assert read_head([b"%d" % FORMAT, b"L", b"7", b"d", b"3", b"7"]) == Head(str(FORMAT), "L", 7, "d", 3)
    assert read_head([b"%d" % FORMAT, b"L", b"7", b"d", b"3", b"6"]) == Head(str(FORMAT), "L", 7, "d")
    with pytest.raises(RouteError, match="same version"):
        read_head([b"9", b"L", b"7", b"d", None, None])
    for values in ([b"1", b"", b"7", b"d"], [b"1", b"L", b"x", b"d"], [b"1", b"L", None, None]):
        with pytest.raises(RouteError, match="makes no sense"):
            read_head([*values, None, None])


def test_a_table_leaves_out_what_is_not_ours_and_says_so() -> None:
    stored = {b"a": SEAL.rule(rule("a")), b"b": b"junk"}
    book, odd = whole(read_table(SEAL, Head("1", "L", 3, "d"), stored))
    assert (book.number, list(book.rules)) == (3, ["a"])
    assert len(odd) == 1 and "'b'" in odd[0]


def test_ids_are_numbers_and_nothing_else() -> None:
    assert [number_of(raw) for raw in (entry_id(5).encode(), b"5-1", b"x-0", b"", b"5")] == [5, 0, 0, 0, 0]
