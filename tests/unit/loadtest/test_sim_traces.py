"""Generated traces."""

from __future__ import annotations

import itertools
import statistics

import pytest

from loadtest.sim.jobs import BYTES_PER_TOKEN, Job, Prompts
from loadtest.sim.traces import KINDS, Ask, make, work_of
from shared.prefix import BLOCK_BYTES, MAX_BLOCKS


def jobs_of(kind: str, seed: int = 1, **ask: float) -> list[Job]:
    return list(make(kind, Ask(count=int(ask.pop("count", 2000)), **ask), seed).jobs)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_requests_again(kind: str) -> None:
    def rows(seed: int) -> list[tuple[object, ...]]:
        return [(j.arrived, j.prompt, j.output, j.asked, j.blocks, j.session) for j in jobs_of(kind, seed, count=200)]

    assert rows(1) == rows(1) != rows(2)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_in_order_and_fit(kind: str) -> None:
    _, block = KINDS[kind]
    before = 0.0
    for job in jobs_of(kind, longest=8192):
        assert job.arrived >= before
        before = job.arrived
        assert 1 <= job.output <= job.asked and job.prompt >= 1 and job.prompt + job.asked <= 8192
        assert len(job.blocks) <= job.prompt // block


@pytest.mark.parametrize(
    ("kind", "prompt", "output"), [("azure", 1020, 129), ("mooncake", None, 350), ("shared", 2158, 220)]
)
def test_medians_are_the_published_ones(kind: str, prompt: int | None, output: int) -> None:
    jobs = jobs_of(kind)
    assert statistics.median(job.output for job in jobs) == pytest.approx(output, rel=0.1)
    if prompt is not None:
        assert statistics.median(job.prompt for job in jobs) == pytest.approx(prompt, rel=0.1)


def test_load_is_the_share_of_the_nodes_time() -> None:
    jobs = jobs_of("azure", load=0.5, nodes=4, count=4000)
    work = sum(work_of(job.prompt, job.output) for job in jobs)
    assert work / (4 * jobs[-1].arrived) == pytest.approx(0.5, rel=0.1)


def test_bursts_vary_more_than_poisson() -> None:
    def variation(burstiness: float) -> float:
        times = [job.arrived for job in jobs_of("azure", burstiness=burstiness, count=4000)]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        return statistics.pstdev(gaps) / statistics.mean(gaps)

    assert variation(1.0) == pytest.approx(1.0, abs=0.15)
    assert variation(3.0) == pytest.approx(3.0, abs=0.6)


@pytest.mark.parametrize(("kind", "least"), [("shared", 0.85), ("sharegpt", 0.5), ("mooncake", 0.2), ("azure", 0.0)])
def test_prompts_share_prefixes(kind: str, least: float) -> None:
    _, block = KINDS[kind]
    seen: set[int] = set()
    shared = total = 0
    for job in jobs_of(kind):
        known = 0
        while known < len(job.blocks) and job.blocks[known] in seen:
            known += 1
        shared += known * block
        total += job.prompt
        seen.update(job.blocks)
    assert shared / total >= least


def test_prompts_that_begin_alike_have_hashes_that_begin_alike() -> None:
    prompts = Prompts(512)
    one = prompts.hashes(Job(1, 0.0, 1600, 1, 1, (7, 8, 9), b""))
    two = prompts.hashes(Job(2, 0.0, 1600, 1, 1, (7, 8, 10), b""))
    same = sum(a == b for a, b in zip(one, two, strict=True))
    assert same == int(2 * 512 * BYTES_PER_TOKEN) // BLOCK_BYTES
    assert len(one) == int(1600 * BYTES_PER_TOKEN) // BLOCK_BYTES
    assert len(prompts.hashes(Job(3, 0.0, 100_000, 1, 1, tuple(range(100, 200)), b""))) == MAX_BLOCKS
