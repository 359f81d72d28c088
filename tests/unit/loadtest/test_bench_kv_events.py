"""The comparison of nodes with and without KV events: its order and its sums."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from loadtest.bench_kv_events import Side, family, order, prompt, show


def test_each_side_is_first_as_often_as_second() -> None:
    turns = order(6)
    assert len(turns) == 6 and all(sorted(turn) == [0, 1] for turn in turns)
    assert sum(turn[0] == 0 for turn in turns) == 3


def test_prompts_are_new_and_the_same_for_both_sides() -> None:
    one, other = random.Random("1-0"), random.Random("1-0")
    texts = [prompt(one).text for _ in range(20)]
    assert len(set(texts)) == 20 and texts == [prompt(other).text for _ in range(20)]


def test_what_events_cost_is_told_by_medians_and_by_round() -> None:
    on = Side("with", "a", (), [90.0, 99.0, 95.0], [0.1, 0.12, 0.11])
    off = Side("without", "b", (), [100.0, 100.0, 100.0], [0.1, 0.1, 0.1])
    text = show(on, off)
    assert "| with | 95.0 | 110.0 |" in text and "| without | 100.0 | 100.0 |" in text
    assert "0.900, 0.990, 0.950" in text
    assert "5.0% of the throughput and 10.0% more CPU" in text


def test_a_family_is_a_process_and_all_below_it() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as outer:
        assert outer.stdout is not None and outer.stdin is not None
        outer.stdout.readline()
        found = family(outer.pid)
        outer.stdin.close()
    assert found[0] == outer.pid and len(found) == 2 and os.getpid() not in found
