"""A hot path that has become dearer is told from noise."""

from __future__ import annotations

import argparse
import random
import threading

import pytest

from loadtest import perf
from loadtest.perf import BANDS, CaseError, PerfError, judge


def test_instructions_are_compared_by_their_least() -> None:
    verdict = judge("grpc", "instructions", [(100.0, 108.0), (100.2, 100.5)])
    assert (verdict.base, verdict.new, verdict.worse) == (100.0, 100.5, False)
    assert judge("grpc", "instructions", [(100.0, 102.5), (100.0, 102.4)]).worse
    assert not judge("grpc", "instructions", [(100.0, 60.0)]).worse


def test_a_noisy_machine_alone_is_not_worse() -> None:
    rng = random.Random(1)
    for _ in range(200):
        pairs = [(rng.uniform(90, 130), rng.uniform(90, 130)) for _ in range(12)]
        assert not judge("grpc", "cpu", pairs).worse


def test_a_slower_path_is_caught_on_a_noisy_machine() -> None:
    rng = random.Random(2)
    slower = 1 + 3 * BANDS["cpu"]
    for _ in range(200):
        pairs = [(rng.uniform(90, 120), slower * rng.uniform(90, 120)) for _ in range(12)]
        assert judge("grpc", "cpu", pairs).worse


def test_one_slow_round_decides_nothing() -> None:
    pairs = [(100.0, 101.0)] * 11 + [(100.0, 900.0)]
    assert not judge("grpc", "cpu", pairs).worse


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf.shutil, "which", lambda _: None)
    with pytest.raises(PerfError, match="valgrind"):
        perf.counter("instructions")
    assert perf.counter("auto") == "cpu"
    args = argparse.Namespace(by="cpu", only="nonsense", self_test=True, base="", plain=True, rounds=1, json=False)
    with pytest.raises(PerfError, match="--only takes"):
        perf.run(args)


class Stub:
    """A side whose answers are known."""

    def __init__(self, *values: float | str, new: bool = False) -> None:
        self.values = list(values)
        self.new = new

    def measure(self, case: str, units: int) -> float:
        value = self.values.pop(0)
        if isinstance(value, str):
            raise CaseError(value, self.new)
        return value


def test_a_case_that_a_revision_lacks_is_not_compared() -> None:
    base, new = Stub("no such module", 100.0, 100.0), Stub(100.0, 150.0, 150.0)
    missing, found = perf.compare(base, new, "cpu", ["http", "grpc"], 1)  # type: ignore[arg-type]
    assert not missing.worse and "no such module" in missing.note
    assert found.case == "grpc"


def test_a_case_that_only_the_working_tree_cannot_run_is_worse() -> None:
    base, new = Stub(100.0, 100.0), Stub("a request was not answered", 90.0, new=True)
    broken, found = perf.compare(base, new, "cpu", ["http", "grpc"], 1)  # type: ignore[arg-type]
    assert broken.worse and "the working tree cannot run it: a request was not answered" in broken.note
    assert not found.worse


def test_a_side_that_does_not_answer_ends_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Stub):
        def __init__(self) -> None:
            super().__init__()
            self.over = threading.Event()

        def measure(self, case: str, units: int) -> float:
            assert self.over.wait(10)
            raise PerfError("ended")

        def kill(self) -> None:
            self.over.set()

    monkeypatch.setattr(perf, "ANSWER_LIMIT", 0.01)
    (verdict,) = perf.compare(Silent(), Silent(), "instructions", ["grpc", "http"], 1)  # type: ignore[arg-type]
    assert verdict.open and "no answer within" in verdict.note
