"""The sums as people read them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory import advice, screen
from inference_node.memory.known import known
from inference_node.memory.plan import Options, Plan, Planner, Verdict
from inference_node.memory.shapes import Shape, Weights, from_config
from tests.unit.node.memory.models import GIB, llama, options, planner, shapes


def sums_of(name: str, memory: int, context: int, many: int, **settings: Any) -> tuple[Planner, Plan]:
    shape = known(name)
    assert shape is not None
    found = planner(shape, memory, **settings)
    return found, found.plan(context, many)


def test_parts_add_up_on_the_screen() -> None:
    _, plan = sums_of("Llama-2-7B", 24 * GIB, 4096, 2)
    lines = screen.sums(plan)
    rule = next(i for i, line in enumerate(lines) if "──" in line)
    numbers = [float(line.split()[-1]) for line in lines[3:rule]]
    total = float(lines[rule + 1].split()[-1])
    assert len(numbers) == 6
    assert abs(sum(numbers) - total) < 0.03
    assert "Fits under 80 %" in lines[-1]


def test_what_broke_a_machine_is_on_one_screen() -> None:
    found, plan = sums_of("Llama-2-7B", 24 * GIB, 32_768, 8)
    lines = [*screen.sums(plan), "", *screen.ways_out(advice.changes(found, plan))]
    text = "\n".join(lines)
    assert "8 of 16 GiB: 524,288 bytes a token" in text
    assert "Does not fit: 118 GiB too much." in text
    assert "32,768 tokens are more than its own 4,096" in text
    assert "--max-seq-len 1024" in text
    assert len(lines) <= 24


def test_tight_plan_says_what_is_left() -> None:
    _, plan = sums_of("Llama-2-7B", 24 * GIB, 4096, 4)
    assert screen.verdict(plan) == "Fits, but over the mark: 92.6 % of the memory; 1.76 GiB left for surprises."


def test_reason_goes_before_a_plan_that_would_fit() -> None:
    _, plan = sums_of("Llama-2-7B", 40 * GIB, 4096, 1)
    assert screen.verdict(plan, "the KV cache is too small") == "Does not fit: the KV cache is too small."


def test_share_is_never_rounded_up_to_the_mark() -> None:
    found, _ = sums_of("Llama-2-7B", 24 * GIB, 4096, 1)
    plan = found.plan(4096, 2, found.room(4096, 2))
    assert plan.verdict is Verdict.EASY
    assert "79.9 %" in screen.verdict(plan)


def test_settings_are_named_as_the_reader_writes_them() -> None:
    found, plan = sums_of("Llama-2-7B", 24 * GIB, 32_768, 8)
    ways = advice.changes(found, plan)
    flags, keys = "\n".join(screen.ways_out(ways)), "\n".join(screen.ways_out(ways, flags=False))
    assert "--quantization awq --kv-dtype fp8 --max-num-seqs 1" in flags
    assert "a checkpoint in awq, engine_args.kv_cache_dtype: fp8, max_num_seqs: 1" in keys
    assert "engine_args.tensor_parallel_size: 8" in keys


def test_pool_that_is_shared_says_how_many_it_holds_whole() -> None:
    found, _ = sums_of("Llama-2-7B", 24 * GIB, 4096, 1)
    lines = screen.sums(found.plan(4096, 9, 3 * GIB))
    assert lines[1] == "up to 9 sequences, each of 4,096 tokens on a GPU with 24 GiB"
    assert any("1 whole, or shorter ones" in line for line in lines)


def test_pool_with_room_to_spare_says_what_for() -> None:
    found, _ = sums_of("Llama-2-7B", 24 * GIB, 4096, 1)
    assert any("prefixes of earlier requests" in line for line in screen.sums(found.plan(4096, 1, 4 * GIB)))


def test_state_is_told_beside_the_cache() -> None:
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "head_dim": 64}
    shape = from_config(llama(model_type="qwen3_next", linear_value_head_dim=64, **sizes))
    lines = screen.sums(planner(shape).plan(4096, 1))
    assert any("512 bytes a token + 201 KiB" in line for line in lines)


def test_notes_are_on_the_screen() -> None:
    shape = from_config(llama(model_type="novel"))
    assert any(line.startswith("Note: architecture not known") for line in screen.sums(planner(shape).plan(1024, 1)))


def test_reach_goes_both_ways() -> None:
    found, plan = sums_of("Llama-3-8B", 24 * GIB, 4096, 1)
    lines = screen.reach(found, plan)
    contexts, most = lines[2].split()[1:], lines[5].split()[1:]
    assert contexts[0] == "own" and len(contexts) == 7
    assert [int(n) for n in most] == sorted((int(n) for n in most), reverse=True)
    assert int(most[-1]) == found.most_sequences(8192)


def test_reach_of_nothing_is_one_line() -> None:
    assert screen.reach(*sums_of("DeepSeek-V3", 24 * GIB, 4096, 1)) == ["Under 80 %, not one sequence has room."]


def test_steps_end_with_the_models_own_context() -> None:
    assert screen.steps(8192, 7) == [512, 1024, 2048, 4096, 8192]
    assert screen.steps(131_072, 7) == [2048, 4096, 8192, 16384, 32768, 65536, 131_072]
    assert screen.steps(40_960, 3) == [16384, 32768, 40_960]
    assert screen.steps(100, 7) == [100]


def test_data_is_json_and_says_the_same() -> None:
    found, plan = sums_of("Llama-2-7B", 24 * GIB, 32_768, 8)
    data = json.loads(json.dumps(screen.as_data(found, plan, advice.changes(found, plan))))
    assert data["kv_bytes_per_token"] == 524_288
    assert data["kv_bytes_per_sequence"] == 16 * GIB
    assert (data["fits"], data["verdict"], data["total"]) == (False, "does not fit", plan.total)
    assert data["total"] == sum(data[k] for k in ("weights", "kv_cache", "prefill_peak", "sampler", "runtime_reserve"))
    assert data["longest_context"]["1"] == 4096
    assert data["changes"][0]["max_seq_len"] == 1024


@given(shapes(), options(), st.integers(26, 40), st.integers(1, 1 << 20), st.integers(1, 4096), st.booleans())
def test_no_line_is_wider_than_a_terminal(
    shape: Shape, given_: Options, power: int, context: int, many: int, flags: bool
) -> None:
    found = Planner(shape, Weights(0, source="the weight index"), given_, 1 << power)
    plan = found.plan(context, many)
    lines = [*screen.sums(plan), *screen.ways_out(advice.changes(found, plan), flags=flags), *screen.reach(found, plan)]
    lines += screen.ways_out(advice.pools(found, plan), flags=flags)
    assert max(map(len, lines)) <= screen.WIDTH


@given(shapes(), options(), st.integers(26, 40), st.integers(1, 1 << 20), st.integers(1, 64))
def test_any_plan_is_plain_data(shape: Shape, given_: Options, power: int, context: int, many: int) -> None:
    found = Planner(shape, Weights(0), given_, 1 << power)
    plan = found.plan(context, many)
    assert json.dumps(screen.as_data(found, plan, advice.changes(found, plan)))
