"""The memory of sessions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch.sessions import OWNER_MASK, PINNED, TOKENS_SHIFT, SessionTable


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1), st.integers(0, 2**26), st.booleans())
def test_a_record_gives_back_what_was_recorded(key: int, owner: int, tokens: int, pinned: bool) -> None:
    table = SessionTable(16)
    table.record(key, owner, tokens, pinned)
    found = table.get(key)
    assert found is not None
    assert found & OWNER_MASK == owner
    assert found >> TOKENS_SHIFT == tokens
    assert bool(found & PINNED) == pinned
    assert table.pins() == ([key] if pinned else [])


def test_absurd_token_counts_do_not_spill_into_other_fields() -> None:
    table = SessionTable(16)
    table.record(1, 5, 1 << 60, False)
    found = table.get(1)
    assert found is not None and found & OWNER_MASK == 5 and not found & PINNED


def test_a_session_that_moves_home_is_no_exception_any_more() -> None:
    table = SessionTable(16)
    table.record(1, 5, 10, True)
    table.record(1, 6, 20, False)
    assert table.pins() == [] and len(table) == 1


def test_table_is_bounded() -> None:
    table = SessionTable(100)
    for key in range(10_000):
        table.record(key, 1, 1, key % 2 == 0)
    assert len(table) <= 100
    assert table.get(9_999) is not None and table.get(0) is None
