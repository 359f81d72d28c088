"""Sizes as people write and read them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 << 30),
        ("24G", 24 << 30),
        ("24 gib", 24 << 30),
        ("24GB", 24 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("4096", 4096),
        ("2TiB", 2 << 40),
        ("100b", 100),
    ],
)
def test_sizes_are_understood(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "24 cows", "0", "1e9", "99999999TiB", "nan", "24GiBB", "²GiB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="24GiB"):
        units.parse_size(text)


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert units.parse_size(text) > 0


@given(st.integers(1, 1 << 20))
def test_whole_gib_come_back_as_they_were_written(count: int) -> None:
    assert units.parse_size(f"{count}GiB") == count << 30


def test_sizes_read_well() -> None:
    assert [units.short(n) for n in (0, 512, 524_288, 13 << 20, 3 << 29, 128 << 30)] == [
        "0 B", "512 B", "512 KiB", "13 MiB", "1.5 GiB", "128 GiB",
    ]  # fmt: skip
    assert (units.gib(3 << 29), units.gib(1 << 20), units.gib(0)) == ("1.50", "0.001", "0.00")


def test_lengths_read_well() -> None:
    assert [units.tokens(n) for n in (512, 1000, 4096, 131_072, 1 << 20)] == ["512", "1,000", "4K", "128K", "1M"]


@pytest.mark.parametrize(
    ("tokens", "rounded"), [(300, 300), (1100, 1024), (3000, 2816), (9552, 9216), (131_072, 131_072)]
)
def test_contexts_are_cut_to_what_people_write(tokens: int, rounded: int) -> None:
    assert units.round_context(tokens) == rounded
