"""The comparison with peers: options, and what Laya is held to."""

from __future__ import annotations

import pytest

from loadtest.bench.plans import PLANS
from loadtest.bench_peers import SCENARIOS, aims, main
from loadtest.figures import Table


def test_every_scenario_is_a_plan_for_simulated_nodes() -> None:
    assert all(PLANS[name].nodes.engine == "sim" for name in SCENARIOS)


def test_laya_is_held_to_the_best_llm_router_and_not_to_proxies() -> None:
    table = Table("t", ("ttft_mean_ms",))
    for target, ttft, good in (
        ("laya", 10.0, 9.0),
        ("smg", 20.0, 10.0),
        ("vllm-router", 8.0, 5.0),
        ("nginx", 1.0, 99.0),
    ):
        table.add("prefix", target, ttft_mean_ms=ttft, ttft_p99_ms=ttft, good_per_second=good)
    found = {aim.what: aim.text for aim in aims(table)}
    assert "1.25" in found["prefix: TTFT mean over the best LLM router's (vllm-router)"]
    assert "MISSED" in found["prefix: TTFT mean over the best LLM router's (vllm-router)"]
    assert "0.900" in found["prefix: good answers/s over the best LLM router's (smg)"]
    assert not any("nginx" in what for what in found)


def test_without_a_peer_there_is_nothing_to_be_held_to() -> None:
    table = Table("t", ("ttft_mean_ms",))
    table.add("burst", "laya", ttft_mean_ms=1.0, ttft_p99_ms=1.0, good_per_second=1.0)
    assert aims(table) == []


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--peers", "nope"], "no nope"),
        (["--only", "everything"], "no everything"),
        (["--scenarios", "quiet"], "no quiet"),
        (["--rounds", "0"], "--rounds must be"),
        (["--budget", "0"], "--budget"),
    ],
)
def test_bad_options_are_refused(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2 and says in capsys.readouterr().err
