"""Plans are checked field by field, and read from YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtest.bench.plan import BadPlan, Nodes, Peak, Plan, Work, check, expected, read, stretches, times_at
from loadtest.bench.plans import PLANS, find

GOOD = Plan("p", (Work("fixed"),), rate=10.0, seconds=10.0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"rate": 0.0}, "rate"),
        ({"rate": -1.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": 100_000.0, "seconds": 1000.0}, "rate"),
        ({"seconds": 0.0}, "seconds"),
        ({"seconds": 1e6}, "seconds"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1000, "seconds": 1000.0, "rate": 0.1}, "rounds"),
        ({"patience": 0.0}, "patience"),
        ({"most_in_flight": 0}, "most_in_flight"),
        ({"works": ()}, "works"),
        ({"name": ""}, "name"),
        ({"name": "../up"}, "name"),
        ({"name": "two words"}, "name"),
        ({"name": "caf\u00e9"}, "name"),
        ({"name": "line\n"}, "name"),
        ({"name": "n" * 65}, "name"),
        ({"works": (Work("odd"),)}, "works[0].kind"),
        ({"works": (Work("fixed"), Work("fixed", share=0.0))}, "works[1].share"),
        ({"works": (Work("fixed", prompt=1 << 30),)}, "works[0].prompt"),
        ({"works": (Work("fixed", cancel=2.0),)}, "works[0].cancel"),
        ({"peaks": (Peak(-1.0, 2.0, 3.0),)}, "peaks[0]"),
        ({"nodes": Nodes(count=0)}, "nodes.count"),
        ({"nodes": Nodes(count=1, kill=1.0)}, "nodes.kill"),
        ({"nodes": Nodes(engine="vllm", slow=1)}, "nodes.engine"),
        ({"nodes": Nodes(count=2, slow=3)}, "nodes.slow"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(changes: dict, field: str) -> None:
    with pytest.raises(BadPlan) as caught:
        check(replace(GOOD, **changes))
    assert str(caught.value).startswith(field)


def test_peaks_raise_the_rate_where_they_are() -> None:
    plan = replace(GOOD, peaks=(Peak(2.0, 3.0, 5.0), Peak(9.0, 9.0, 0.0)))
    assert [times_at(plan, at) for at in (0.0, 2.0, 4.9, 5.0, 9.5)] == [1.0, 5.0, 5.0, 1.0, 0.0]
    assert sum(seconds for seconds, _ in stretches(plan)) == pytest.approx(10.0)
    assert expected(plan) == pytest.approx(10 * (2 + 15 + 4 + 0))


def test_a_plan_comes_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nrate: 3\nworks:\n- {kind: sharegpt, sessions: true}\nnodes: {count: 3}\n")
    plan = find(str(file))
    assert (plan.name, plan.rate, plan.works[0].sessions, plan.nodes.count) == ("mine", 3.0, True, 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [", "not YAML"),
        ("[" * 50_000, "not YAML"),
        ("name: x\nrate: 3\n", "works"),
        ("name: x\nrate: fast\nworks: [{kind: fixed}]\n", "rate"),
        ("name: x\nrate: 1\nworks: [{kind: fixed}]\nbudgte: 3\n", "budgte"),
        ("name: x\nrate: -1\nworks: [{kind: fixed}]\n", "rate"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(BadPlan, match=says) as caught:
        read(file)
    assert str(file) in str(caught.value)


def test_a_trace_is_looked_for_beside_its_plan_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nrate: 3\nworks: [{kind: one.jsonl}, {kind: other.jsonl}]\n")
    (tmp_path / "one.jsonl").touch()
    assert [work.kind for work in read(file).works] == [str(tmp_path / "one.jsonl"), "other.jsonl"]


def test_an_unknown_name_lists_the_plans() -> None:
    with pytest.raises(BadPlan, match="smoke, chat, burst, prefix"):
        find("nope")
    with pytest.raises(BadPlan, match="cannot be read"):
        find("missing.yaml")


def test_every_plan_that_comes_along_is_sound() -> None:
    for name, plan in PLANS.items():
        assert check(plan).name == name and plan.about
