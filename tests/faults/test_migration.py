"""Nodes break under streams in every way, at a random token, and no reader notices: few of each here.

``LAYA_MIGRATION_STREAMS`` is how many are moved by kills; ``python -m tests.faults.migration`` is the long run.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.hosts import possible
from tests.faults.migration import BREAKS, broken, table

STREAMS = int(os.environ.get("LAYA_MIGRATION_STREAMS", "16"))
SEED = int(os.environ.get("LAYA_FAULTS_SEED", random.SystemRandom().randrange(1 << 31)))


@pytest.mark.integration
@pytest.mark.timeout(300 + STREAMS)
async def test_no_reader_notices_that_its_node_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    why = possible()
    if why:
        pytest.skip(f"streams are broken in network namespaces: {why}")
    counts = {name: STREAMS if name == "kill" else max(STREAMS // 6, 2) for name in BREAKS}
    results = await broken(counts, 16, SEED, limit=40)
    with capsys.disabled():
        print(f"\nmigration, seed {SEED}\n{table(results)}")
    assert not [f"{result.name}: {problem}" for result in results for problem in result.problems], f"seed {SEED}"
    assert all(result.moved >= counts[result.name] for result in results if result.name != "two deaths")
