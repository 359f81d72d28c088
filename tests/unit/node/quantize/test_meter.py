"""Progress as parts of parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.quantize.meter import Meter, counted


def test_a_part_reports_its_stretch_of_the_whole() -> None:
    seen: list[tuple[float, str]] = []
    part = Meter(lambda f, t: seen.append((f, t))).part(0.5, 0.9)
    part.at(0.5, "half")
    part.at(2.0, "past the end")
    assert [text for _, text in seen] == ["half", "past the end"]
    assert [fraction for fraction, _ in seen] == pytest.approx([0.7, 0.9])


@given(st.lists(st.floats(0, 1), max_size=20))
def test_a_bar_never_goes_backwards(fractions: list[float]) -> None:
    seen: list[float] = []
    part = Meter(lambda f, t: seen.append(f)).part(0.1, 0.6).part(0.2, 0.8)
    for fraction in fractions:
        part.at(fraction)
    assert seen == sorted(seen)


def test_without_a_listener_nothing_happens() -> None:
    Meter(None).part(0.0, 0.5).at(0.5, "unheard")


def test_a_bar_that_iterates_moves_the_meter() -> None:
    seen: list[tuple[float, str]] = []
    bar = counted(Meter(lambda f, t: seen.append((f, t))), ([1, 2],), {"desc": "Loading GGUF weights..."})
    assert list(bar) == [1, 2]
    assert seen == [(0.5, "loading GGUF weights"), (1.0, "loading GGUF weights")]


def test_a_bar_that_is_updated_moves_the_meter_and_takes_any_other_call() -> None:
    seen: list[float] = []
    with counted(Meter(lambda f, t: seen.append(f)), (), {"total": 4}) as bar:
        bar.set_postfix(name="x")
        bar.update(3)
        bar.update()
        bar.close()
    assert seen == [0.75, 1.0]


def test_a_bar_of_unknown_length_says_nothing() -> None:
    seen: list[float] = []
    assert list(counted(Meter(lambda f, t: seen.append(f)), (iter([1, 2]),), {})) == [1, 2]
    assert seen == []
