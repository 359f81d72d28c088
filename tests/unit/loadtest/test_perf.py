"""A hot path that has become dearer is told from noise."""

from __future__ import annotations

import argparse
import random
import subprocess
import threading
from pathlib import Path

import pytest

from loadtest import perf
from loadtest.perf import BANDS, PerfError, judge
from tests.support.ports import within
from tests.support.up import alive


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


def test_a_revision_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match="git rev-parse"):
        perf.extract("no-such-revision", tmp_path)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf.shutil, "which", lambda _: None)
    with pytest.raises(PerfError, match="valgrind"):
        perf.counter("instructions")
    assert perf.counter("auto") == "cpu"
    args = argparse.Namespace(by="cpu", only="nonsense", self_test=True, base="", plain=True, rounds=1, json=False)
    with pytest.raises(PerfError, match="--only takes"):
        perf.run(args)


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    perf._bounded(["sh", "-c", child], tmp_path, 1.0)
    pid = int((tmp_path / "pid").read_text())
    within(5.0, lambda: not alive(pid), "the child is gone")


class Stub:
    """A side whose answers are known."""

    def __init__(self, *values: float | str) -> None:
        self.values = list(values)

    def measure(self, case: str, units: int) -> float:
        value = self.values.pop(0)
        if isinstance(value, str):
            raise PerfError(value)
        return value


def test_a_case_that_a_revision_lacks_is_not_compared() -> None:
    base, new = Stub("no such module", 100.0, 100.0), Stub(100.0, 150.0, 150.0)
    missing, found = perf.compare(base, new, "cpu", ["http", "grpc"], 1)  # type: ignore[arg-type]
    assert not missing.worse and "no such module" in missing.note
    assert found.case == "grpc"


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
    (verdict,) = perf.compare(Silent(), Silent(), "instructions", ["grpc"], 1)  # type: ignore[arg-type]
    assert not verdict.worse and "no answer within" in verdict.note


def test_the_tree_of_a_revision_is_taken_from_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=repository, check=True)

    git("init", "-q")
    (repository / "router_node").mkdir()
    file = repository / "router_node" / "a.py"
    for text in ("one", "two"):
        file.write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", text)
    monkeypatch.setattr(perf, "ROOT", repository)
    assert perf.default_base() == "HEAD~1"
    file.write_text("three")
    assert perf.default_base() == "HEAD"
    (tmp_path / "out").mkdir()
    tree = perf.extract("HEAD~1", tmp_path / "out")
    assert (tree / "router_node" / "a.py").read_text() == "one"
