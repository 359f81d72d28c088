"""Two reports side by side: the verdict follows the rounds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loadtest.bench.diff import JUDGED, NotComparable, as_dict, diff, html, sentence, text
from loadtest.bench.report import FIGURES
from tests.unit.loadtest.bench.made import made


def verdict(a: float, b: float, **options: object) -> str:
    return diff(made(a, seed=1), made(b, seed=2, **options)).overall  # type: ignore[arg-type]


def test_a_slower_report_is_worse_and_a_faster_one_better() -> None:
    assert verdict(0.1, 0.2) == "worse"
    assert verdict(0.2, 0.1) == "better"


def test_two_runs_of_one_thing_show_no_difference() -> None:
    found = diff(made(seed=1), made(seed=2))
    assert found.overall == "no difference shown" and sentence(found) == "No difference is shown."


def test_false_alarms_are_one_in_twenty_comparisons_at_most() -> None:
    alarms = sum(diff(made(seed=2 * i), made(seed=2 * i + 1)).overall != "no difference shown" for i in range(40))
    assert alarms <= 6  # two are expected at most; three standard deviations above that


def test_better_here_and_worse_there_is_mixed() -> None:
    b = made(0.05, seed=2)
    for i, one in enumerate(b.rounds):
        one.figures["tokens"] = 1.0 + 0.01 * i
    found = diff(made(0.1, seed=1), b)
    assert found.overall == "mixed"
    assert sentence(found).startswith("B is better in TTFT p50") and "worse in tokens" in sentence(found)


def test_too_few_rounds_say_nothing() -> None:
    found = diff(made(rounds=2), made(0.9, rounds=2))
    assert found.overall == "too few rounds" and "three whole rounds" in sentence(found)


def test_a_round_that_was_cut_does_not_count() -> None:
    b = made(0.1, seed=2)
    b.rounds[-1].partial, b.rounds[-1].figures = True, {"ttft_p50": 1e9}
    assert diff(made(seed=1), b).overall == "no difference shown"


def test_rounds_in_turns_are_paired_and_others_are_noted() -> None:
    a, b = made(pair="x"), made(seed=2, pair="x", rounds=6)
    assert diff(a, b).paired and not any("turns" in note for note in diff(a, b).notes)
    apart = diff(made(), made(seed=2))
    assert not apart.paired and any("did not take turns" in note for note in apart.notes)


def test_other_plans_are_not_compared() -> None:
    b = made()
    b.plan = replace(b.plan, rate=11.0)
    with pytest.raises(NotComparable, match="same plan"):
        diff(made(), b)


def test_another_machine_and_a_part_of_a_run_are_noted() -> None:
    b = made(seed=2)
    b.environment["cores"], b.partial = "64", "it was interrupted"
    notes = " ".join(diff(made(), b).notes)
    assert "cores: A had 2, B 64" in notes and "B is not whole: it was interrupted" in notes


def test_it_is_shown_to_people_scripts_and_browsers() -> None:
    a, b = made(0.1), made(0.2, seed=2)
    found = diff(a, b)
    assert "worse" in text(a, b, found) and "(not judged)" in text(a, b, found)
    told = as_dict(found)
    assert told["overall"] == "worse"
    assert told["figures"]["ttft_p50"]["verdict"] == "worse"  # type: ignore[index]
    shown = html(a, b, found, {})
    assert '<td class="worse">' in shown and "http" not in shown


def test_what_is_judged_is_known() -> None:
    assert set(JUDGED) <= {name for name, (_, _, less) in FIGURES.items() if less is not None}
