"""What a sequence takes: sums over groups, never less than what its layers keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory.sequence import BlockGroup, plain, sequence_blocks, unit, windowed

GEMMA = (windowed(5, 128, 128, 512), BlockGroup(1, 128))


def test_a_short_sequence_takes_its_tokens_in_whole_blocks_of_every_group() -> None:
    assert sequence_blocks(GEMMA, 1) == 6
    assert sequence_blocks(GEMMA, 128) == 6
    assert sequence_blocks(GEMMA, 129) == 12


def test_a_window_keeps_no_more_than_itself_what_is_in_flight_and_a_block() -> None:
    # 127 + 512 tokens are five blocks, and a window may begin inside one more.
    assert windowed(1, 128, 128, 512).blocks(10_000) == 6
    assert sequence_blocks(GEMMA, 2048) == 5 * 6 + 16


def test_a_state_takes_the_same_whatever_the_length() -> None:
    assert [BlockGroup(3, extra=2).blocks(tokens) for tokens in (1, 100_000)] == [6, 6]


@pytest.mark.parametrize(
    ("groups", "is_plain"),
    [
        ((BlockGroup(1, 16),), True),
        ((BlockGroup(2, 16),), False),
        ((windowed(1, 16, 64, 64),), False),
        ((BlockGroup(1, 16, extra=1),), False),
        ((BlockGroup(1, extra=2),), False),
        ((), False),
        (GEMMA, False),
    ],
)
def test_only_one_group_that_keeps_all_is_plain(groups: tuple[BlockGroup, ...], is_plain: bool) -> None:
    assert plain(groups) is is_plain


def test_a_block_counts_for_its_share_of_a_sequence_of_full_length() -> None:
    assert unit(GEMMA, 2048) == 2048 // 46
    assert unit((BlockGroup(1, 16),), 4096) == 16
    assert unit((), 100) == 100


_GROUPS = st.lists(
    st.one_of(
        st.builds(BlockGroup, st.integers(1, 8), st.sampled_from((16, 128))),
        st.builds(windowed, st.integers(1, 8), st.sampled_from((16, 128)), st.integers(1, 4096), st.integers(1, 2048)),
        st.builds(BlockGroup, st.integers(1, 8), extra=st.integers(1, 4)),
    ),
    min_size=1,
    max_size=5,
)


@given(_GROUPS, st.integers(1, 50_000), st.integers(1, 50_000))
def test_two_sequences_take_no_less_than_one_of_their_lengths_together(
    groups: list[BlockGroup], one: int, two: int
) -> None:
    together = sequence_blocks(groups, one + two)
    assert max(sequence_blocks(groups, one), sequence_blocks(groups, two)) <= together
    assert together <= sequence_blocks(groups, one) + sequence_blocks(groups, two)
