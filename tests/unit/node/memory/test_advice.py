"""Ways out: each with numbers, each of them true."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory import advice
from inference_node.memory.advice import Change, changes
from inference_node.memory.known import known
from inference_node.memory.plan import COMFORT, Options, Planner, Verdict
from inference_node.memory.shapes import Shape, Weights
from tests.unit.node.memory.models import GIB, options, planner, shapes


def well_known(name: str) -> Shape:
    shape = known(name)
    assert shape is not None
    return shape


def applied(sums: Planner, plan: Any, change: Change) -> Any:
    """The plan that a change leads to."""
    settings = dict(change.settings)
    context = settings.pop("max_seq_len", plan.context)
    sequences = settings.pop("max_num_seqs", plan.sequences)
    pool = settings.pop("kv_cache_memory_bytes", None)
    memory = settings.pop("memory", sums.memory)
    other = Planner(sums.shape, sums.stored, sums.with_options(**settings).options, memory)
    return other.plan(context, sequences, pool)


def test_team_that_lost_its_machine_is_told_what_would_have_worked() -> None:
    sums = planner(well_known("Llama-2-7B"))
    found = changes(sums, sums.plan(32_768, 8))
    settings = [change.settings for change in found]
    assert {"max_seq_len": 1024} in settings
    assert {"quantization": "awq", "kv_dtype": "fp8", "max_num_seqs": 1} in settings
    assert settings[-1] == {"memory": 178 * GIB}


def test_fewer_sequences_come_first() -> None:
    sums = planner(well_known("Llama-2-7B"))
    first, second = changes(sums, sums.plan(4096, 8))[:2]
    assert (first.settings, second.settings) == ({"max_num_seqs": 2}, {"max_seq_len": 1024})


def test_model_that_is_too_large_is_spread_or_shrunk() -> None:
    sums = planner(well_known("Llama-3-70B"))
    settings = [change.settings for change in changes(sums, sums.plan(4096, 1))]
    assert {"tensor_parallel": 8} in settings
    assert any(s.get("quantization") == "awq" and s.get("tensor_parallel") == 4 for s in settings)


def test_where_nothing_helps_there_is_the_memory_that_would() -> None:
    sums = planner(well_known("DeepSeek-V3"), 8 * GIB, device="cpu")
    (only,) = changes(sums, sums.plan(4096, 1))
    assert list(only.settings) == ["memory"]
    assert only.settings["memory"] * COMFORT >= sums.plan(4096, 1).total


def test_cache_of_latent_attention_is_not_narrowed_on_a_cpu() -> None:
    sums = planner(well_known("DeepSeek-V2"), 480 * GIB, device="cpu")
    assert not any("kv_dtype" in change.settings for change in changes(sums, sums.plan(8192, 64)))


@given(shapes(), options(), st.integers(28, 40), st.integers(256, 100_000), st.integers(1, 256))
def test_every_way_out_leads_out(shape: Shape, given_: Options, power: int, context: int, many: int) -> None:
    sums = Planner(shape, Weights(0), given_, 1 << power)
    plan = sums.plan(context, many)
    if plan.verdict is Verdict.EASY:
        return
    found = changes(sums, plan)
    assert 1 <= len(found) <= 6
    for change in found:
        other = applied(sums, plan, change)
        assert other.verdict is not Verdict.NO
        if "memory" not in change.settings:
            assert (other.verdict, other.total) == (change.verdict, change.total)


@given(shapes(), st.integers(30, 38), st.integers(256, 100_000), st.integers(1, 64), st.integers(1, 1 << 38))
def test_every_pool_that_is_offered_holds_a_sequence(
    shape: Shape, power: int, context: int, many: int, pool: int
) -> None:
    sums = Planner(shape, Weights(0), Options(), 1 << power)
    plan = sums.plan(context, many, pool)
    for change in advice.pools(sums, plan):
        other = applied(sums, plan, change)
        if "kv_cache_memory_bytes" in change.settings:
            assert other.verdict is not Verdict.NO
            assert other.layout.sequences(other.pool, other.context) >= 1
        else:
            assert plan.layout.sequences(pool, change.settings["max_seq_len"]) >= 1
