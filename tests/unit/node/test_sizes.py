"""Blocks of a request: at most, and as held under over-commit."""

from __future__ import annotations

import pytest

from inference_node.engines.base import EngineStats, Finished
from inference_node.lanes import Need
from inference_node.lengths import LEAST, Overcommit
from inference_node.memory import Ledger
from inference_node.sizes import Sizes
from shared.errors import LayaError


def test_every_prompt_and_sequence_is_summed_in_whole_blocks():
    sizes = Sizes(Ledger(1000, 16), 4096, None)
    assert sizes.hold(Need([16, 17], 16, 2)) == 2 * 2 + 2 * 3
    assert sizes.hold(Need([16], 0)) == 1
    assert sizes.engine_has_room(Need([16], 16))


def test_lookahead_is_in_the_sums_but_not_beyond_the_context():
    ledger = Ledger(1000, 16, lookahead_tokens=20, sequence_tokens=64)
    assert Sizes(ledger, 64, None).hold(Need([16], 12)) == 3  # 28 + 20
    assert Sizes(ledger, 64, None).hold(Need([16], 48)) == 4  # the engine never computes a 65th token


def test_what_can_never_fit_is_refused_also_with_overcommit():
    over = Overcommit(0.9, 1000, 10, EngineStats, lambda: 0.0)
    for sizes in (Sizes(Ledger(10, 16), 4096, None), Sizes(Ledger(10, 16), 4096, over)):
        with pytest.raises(LayaError, match="needs 176 tokens .* this node has 160"):
            sizes.hold(Need([16], 160))


def test_overcommit_holds_prompt_and_learned_length():
    stats = EngineStats()
    over = Overcommit(0.9, 1000, 100, lambda: stats, lambda: 0.0)
    sizes = Sizes(Ledger(100, 16), 4096, over)
    need = Need([20], 1000, 1)
    assert sizes.hold(need) == 64
    for _ in range(LEAST):
        over.finished(Finished(20, 1000, 12))
    assert sizes.hold(need) == 2
    assert sizes.hold(Need([20], 0)) == 2
    stats.kv_usage = 0.99
    assert not sizes.engine_has_room(need)
