"""A model whose sequences take more blocks than their tokens say is reserved for by blocks."""

from __future__ import annotations

import pytest

from router_node.dispatch import KvGroup
from shared.errors import LayaError
from tests.unit.dispatch.support import Bed

# Five groups with a window, one that keeps all: 46 blocks for 2,048 tokens, each of which counts for 44.
GROUPS = (KvGroup(5, 128, 6, 0), KvGroup(1, 128, 0, 0))
UNIT = 44


def windows(bed: Bed, blocks: int = 95) -> None:
    bed.node("a", capacity=blocks * UNIT, kv_block_tokens=UNIT, kv_groups=GROUPS, max_seq_len=2048)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 6), (128, 6), (129, 12), (700, 36), (2048, 46)])
def test_a_sequence_takes_what_its_groups_take(tokens: int, blocks: int) -> None:
    assert sum(group.blocks(tokens) for group in GROUPS) == blocks


def test_a_state_takes_blocks_whatever_the_length() -> None:
    assert [KvGroup(3, 0, 0, 2).blocks(tokens) for tokens in (1, 9999)] == [6, 6]


def test_a_reservation_holds_whole_blocks_of_every_group() -> None:
    bed = Bed()
    windows(bed)
    assert bed.reserve(prompt_tokens=40, max_new_tokens=60).tokens == 6 * UNIT
    assert bed.reserve(prompt_tokens=100, max_new_tokens=29).tokens == 12 * UNIT


def test_a_node_is_full_when_its_blocks_are() -> None:
    bed = Bed()
    windows(bed)
    for _ in range(95 // 6):
        bed.reserve(prompt_tokens=40, max_new_tokens=60)
    # 15 requests of 100 tokens take 90 of 95 blocks; by their tokens 26 would.
    bed.wait(prompt_tokens=40, max_new_tokens=60)


def test_what_fits_the_context_but_not_the_blocks_is_refused_with_both_numbers() -> None:
    bed = Bed()
    windows(bed, blocks=40)
    bed.reserve(prompt_tokens=700, max_new_tokens=60, exact=True)
    with pytest.raises(LayaError, match=f"take {46 * UNIT}, but the KV cache .* holds {40 * UNIT} tokens") as refused:
        bed.ask(prompt_tokens=2000, max_new_tokens=48, exact=True)
    assert refused.value.reason == "NEVER_FITS"


def test_several_sequences_take_their_blocks_each() -> None:
    bed = Bed()
    windows(bed)
    assert bed.reserve(prompt_tokens=40, max_new_tokens=120, n=2).tokens == 2 * 6 * UNIT


def test_several_sequences_of_a_plain_model_hold_the_prompt_each() -> None:
    bed = Bed()
    bed.node("a")
    assert bed.reserve(prompt_tokens=100, max_new_tokens=80, n=4).tokens == 4 * (100 + 20 + 8)
    assert bed.reserve(prompt_tokens=100, max_new_tokens=80, n=1).tokens == 192
    assert bed.reserve(prompt_tokens=100, max_new_tokens=80).tokens == 192
