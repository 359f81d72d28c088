"""The ledger: whole blocks, never more than there are, each returned once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inference_node.memory import Hold, Ledger, LedgerFull
from inference_node.memory.sequence import BlockGroup


def test_a_hold_is_whole_blocks_for_prompt_growth_and_lookahead_of_each_sequence():
    ledger = Ledger(100, 16, lookahead_tokens=3)
    assert ledger.blocks_for(16, 13) == 2
    assert ledger.blocks_for(16, 14) == 3
    assert ledger.blocks_for(16, 14, n=4) == 12


def test_with_groups_a_hold_is_what_each_group_of_layers_takes():
    ledger = Ledger(100, 50, groups=(BlockGroup(5, 16, most=4), BlockGroup(1, 16), BlockGroup(1, extra=2)))
    assert ledger.blocks_for(10, 6) == 5 + 1 + 2
    assert ledger.blocks_for(1000, 24, n=2) == 2 * (5 * 4 + 64 + 2)
    ledger.hold(ledger.blocks_for(10, 6))
    assert (ledger.capacity_tokens, ledger.headroom_tokens) == (5000, 4600)


def test_capacity_and_headroom_are_in_tokens():
    ledger = Ledger(10, 16)
    hold = ledger.hold(4)
    assert (ledger.capacity_tokens, ledger.headroom_tokens, ledger.holds) == (160, 96, 1)
    hold.release()
    assert (ledger.headroom_tokens, ledger.holds) == (160, 0)


def test_what_does_not_fit_is_refused_and_changes_nothing():
    ledger = Ledger(4, 16)
    ledger.hold(3)
    assert not ledger.fits(2)
    with pytest.raises(LedgerFull, match="2 blocks asked for, 1 free"):
        ledger.hold(2)
    assert ledger.held_blocks == 3


@pytest.mark.parametrize("blocks", [0, -1])
def test_a_hold_of_nothing_is_a_mistake(blocks):
    with pytest.raises(ValueError, match="at least one block"):
        Ledger(4, 16).hold(blocks)


def test_release_tells_the_waiting_once():
    ledger = Ledger(4, 16)
    told = []
    ledger.on_release = lambda: told.append(ledger.free_blocks)
    hold = ledger.hold(3)
    assert hold.release() is True
    assert hold.release() is False
    assert hold.released
    assert told == [4]


@pytest.mark.parametrize("bad", [(0, 16, 0), (4, 0, 0), (4, 16, -1)])
def test_a_ledger_of_nothing_is_a_mistake(bad):
    with pytest.raises(ValueError, match="at least one block"):
        Ledger(*bad)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 16), st.integers(1, 256), st.integers(0, 8))
def test_held_blocks_always_cover_every_token(prompt, new, n, block, lookahead):
    blocks = Ledger(1, block, lookahead).blocks_for(prompt, new, n)
    assert blocks % n == 0
    each = blocks // n * block
    assert prompt + new + lookahead <= each < prompt + new + lookahead + block


class LedgerMachine(RuleBasedStateMachine):
    """Any order of holds and releases, releases repeated at will."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(50, 16)
        self.live: list[Hold] = []
        self.dead: list[Hold] = []

    @rule(blocks=st.integers(1, 60))
    def hold(self, blocks: int) -> None:
        if self.ledger.fits(blocks):
            self.live.append(self.ledger.hold(blocks))
        else:
            with pytest.raises(LedgerFull):
                self.ledger.hold(blocks)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.live:
            hold = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            assert hold.release()
            self.dead.append(hold)

    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        if self.dead:
            assert not data.draw(st.sampled_from(self.dead)).release()

    @invariant()
    def counts_are_exact_and_within_capacity(self) -> None:
        held = sum(hold.blocks for hold in self.live)
        assert self.ledger.held_blocks == held <= self.ledger.capacity_blocks
        assert self.ledger.holds == len(self.live)


TestLedgerMachine = LedgerMachine.TestCase
