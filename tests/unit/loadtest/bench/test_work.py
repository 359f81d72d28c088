"""Requests follow from plan and seed alone."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtest.bench.plan import BadPlan, Peak, Plan, Work
from loadtest.bench.plans import PLANS
from loadtest.bench.work import body, look, requests
from loadtest.sim.mooncake import BadTrace

PLAN = Plan("p", (Work("fixed", prompt=50, output=7),), rate=50.0, seconds=20.0)


def test_the_same_seed_gives_the_same_requests() -> None:
    plan = PLANS["chat"]
    assert requests(plan, 3) == requests(plan, 3)
    assert requests(plan, 3) != requests(plan, 4)


def test_a_salt_changes_the_words_and_nothing_else() -> None:
    a, b = requests(PLAN, 1, "x"), requests(PLAN, 1, "y")
    assert [(r.at, r.prompt, r.output) for r in a] == [(r.at, r.prompt, r.output) for r in b]
    assert not {r.text for r in a} & {r.text for r in b}


def test_arrivals_have_the_rate_that_was_asked_for() -> None:
    for kind, spread in (("constant", 0.0), ("poisson", 1.0), ("bursts", 3.0)):
        times = [r.at for r in requests(replace(PLAN, arrivals=kind, rate=200.0), 1)]
        gaps = [b - a for a, b in pairwise(times)]
        assert times == sorted(times) and times[0] >= 0 and times[-1] < 20.0
        assert len(times) == pytest.approx(4000, rel=0.25 if kind == "bursts" else 0.06)
        assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(spread, abs=0.4)


def test_more_come_in_a_peak() -> None:
    times = [r.at for r in requests(replace(PLAN, peaks=(Peak(5.0, 5.0, 4.0),)), 1)]
    inside = sum(5.0 <= at < 10.0 for at in times)
    assert inside == pytest.approx(1000, rel=0.15)
    assert len(times) - inside == pytest.approx(750, rel=0.15)


def test_shared_prefixes_are_shared_texts() -> None:
    made = requests(replace(PLANS["prefix"], seconds=5.0), 1)
    heads = [r.text[:8000] for r in made]
    assert 1 < len(set(heads)) < len(heads)
    assert len({r.text for r in made}) == len(made)
    assert all(r.prompt <= 2560 and r.output <= 24 for r in made)


def test_a_conversation_grows_and_keeps_its_name() -> None:
    made = [r for r in requests(replace(PLANS["chat"], rate=30.0), 1) if r.session]
    by_name: dict[str, list[str]] = {}
    for r in made:
        by_name.setdefault(r.session, []).append(r.text)
    longest = max(by_name.values(), key=len)
    assert len(longest) > 1
    assert longest[1][:400] == longest[0][:400]


def test_lengths_are_in_tokens() -> None:
    assert len(requests(PLAN, 1)[0].text.split()) == 50
    assert len(requests(PLAN, 1, tokens_per_word=2.0)[0].text.split()) == 25


def test_some_clients_go_away() -> None:
    made = requests(replace(PLAN, works=(Work("fixed", output=10, cancel=0.3),)), 1)
    gone = [r.cancel_after for r in made if r.cancel_after]
    assert len(gone) == pytest.approx(0.3 * len(made), rel=0.25)
    assert all(1 <= after < 10 for after in gone)


def test_kinds_are_mixed_by_their_shares() -> None:
    made = requests(replace(PLAN, works=(Work("fixed", 3.0), Work("azure", 1.0, priority=2))), 1)
    some = [r for r in made if r.kind == "azure"]
    assert len(some) == pytest.approx(len(made) / 4, rel=0.25)
    assert {r.priority for r in some} == {2}


def test_a_trace_file_is_used_and_begins_anew_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    rows = [{"timestamp": i, "input_length": 600, "output_length": 5, "hash_ids": [7, i]} for i in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = requests(replace(PLAN, works=(Work(str(file), prompt=4096),)), 1)
    assert len(made) > 3 and {r.kind for r in made} == {"t"}
    assert len({r.text[:2000] for r in made}) == 1


def test_a_bad_trace_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": -5, "input_length": 1, "output_length": 1}\n')
    with pytest.raises(BadTrace, match="line 1: timestamp"):
        requests(replace(PLAN, works=(Work(str(file)),)), 1)


def test_a_request_asks_for_a_stream_of_exactly_its_tokens() -> None:
    [first, *_] = requests(replace(PLAN, works=(Work("fixed", output=7, priority=3),)), 1)
    sent = json.loads(body(first, "m"))
    assert sent["max_tokens"] == 7 and sent["ignore_eos"] and sent["stream"] and sent["stream_options"]
    assert sent["priority"] == 3 and sent["messages"] == [{"role": "user", "content": first.text}]


def test_files_of_a_plan_are_looked_at_before_anything_is_sent(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    plan = replace(PLAN, works=(Work("fixed"), Work("azure"), Work(str(trace))))
    with pytest.raises(BadPlan, match=r"works\[2\].kind: .*t.jsonl cannot be read \(No such file"):
        look(plan)
    trace.write_text("[" * 100_000)
    with pytest.raises(BadTrace, match="t.jsonl, line 1: not JSON"):
        look(plan)
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}')
    look(plan)
