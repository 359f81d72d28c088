"""Cores and GPUs are shared out evenly, and never silently twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.cli import hardware


@given(st.lists(st.integers(0, 255), min_size=1, max_size=64, unique=True), st.integers(1, 80))
def test_every_node_gets_cores_and_none_is_given_twice_while_they_last(cores: list[int], nodes: int) -> None:
    shares = hardware.share_cores(cores, nodes)
    given_out = [int(c) for share in shares for c in share.split(",")]
    assert len(shares) == nodes
    assert all(shares)
    if nodes <= len(cores):
        assert sorted(given_out) == sorted(cores)
        sizes = [share.count(",") + 1 for share in shares]
        assert max(sizes) - min(sizes) <= 1
    else:
        assert set(given_out) == set(cores)


def test_each_node_gets_its_gpu() -> None:
    assert hardware.share_gpus(["0", "1", "2", "3"], 2) == ["0,1", "2,3"]
    assert hardware.share_gpus(["0", "1"], 2) == ["0", "1"]
    assert hardware.share_gpus([], 3) == ["", "", ""]


def test_more_nodes_than_gpus_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"--nodes 3 .* has 2"):
        hardware.share_gpus(["0", "1"], 3)


def test_gpus_hidden_by_the_user_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert hardware.gpus() == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hardware.gpus() == []
