"""What a node takes of the memory it finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory.choice import CPU_POOL, Choice, Wanted, choose
from inference_node.memory.known import known
from inference_node.memory.plan import Options, Planner, Verdict
from inference_node.memory.shapes import Shape, Weights
from tests.unit.node.memory.models import GIB, options, planner, shapes


def well_known(name: str) -> Shape:
    shape = known(name)
    assert shape is not None
    return shape


def on_cpu(name: str, memory: int, **wanted: int) -> Choice:
    return choose(planner(well_known(name), memory, device="cpu"), Wanted(**wanted))


def on_gpu(name: str, memory: int, share: float = 0.8, **wanted: int) -> Choice:
    return choose(planner(well_known(name), memory), Wanted(share=share, **wanted))


def test_small_model_on_a_cpu_takes_a_gib_and_its_whole_context() -> None:
    plan = on_cpu("SmolLM2-135M", 20 * GIB).plan
    assert (plan.pool, plan.context, plan.sequences) == (CPU_POOL, 8192, 16)
    assert plan.verdict is Verdict.EASY


def test_larger_model_takes_room_for_a_few_sequences_but_half_of_what_is_free() -> None:
    plan = on_cpu("Llama-2-7B", 64 * GIB).plan
    assert plan.context == 4096
    assert plan.layout.sequences(plan.pool, 4096) == 4
    tight = on_cpu("Llama-2-7B", 24 * GIB).plan
    assert tight.pool < 3 * GIB and tight.verdict is Verdict.EASY


def test_gpu_is_filled_to_its_share() -> None:
    for share in (0.5, 0.8, 0.9):
        choice = on_gpu("Llama-3-8B", 80 * GIB, share)
        assert not choice.refusal
        # The reserve is for more sequences than then run, so a little is left.
        assert 0.97 * share <= choice.plan.total / (80 * GIB) <= share
    assert choice.tight  # above the mark because that was asked for


def test_number_of_sequences_follows_from_the_cache() -> None:
    assert on_gpu("Llama-3-8B", 80 * GIB).plan.sequences == 256
    assert on_gpu("Llama-2-7B", 24 * GIB).plan.sequences == 9


def test_context_leaves_room_for_several_sequences() -> None:
    plan = on_gpu("Llama-3.1-8B", 24 * GIB).plan
    assert plan.layout.sequences(plan.pool, plan.context) >= 4
    assert plan.context < 131_072


def test_both_numbers_must_fit_at_once() -> None:
    choice = on_gpu("Llama-2-7B", 24 * GIB, context=32_768, sequences=8)
    assert choice.refusal == "8 sequences of 32,768 tokens at once do not fit"


def test_over_the_mark_is_tight_but_taken() -> None:
    choice = on_gpu("Llama-2-7B", 24 * GIB, context=4096, sequences=4)
    assert choice.tight
    assert (choice.plan.context, choice.plan.sequences) == (4096, 4)
    assert not choice.plan.shares


def test_both_numbers_with_room_to_spare_leave_the_rest_to_the_prefix_cache() -> None:
    gpu = on_gpu("SmolLM2-135M", 24 * GIB, context=2048, sequences=4).plan
    assert gpu.verdict is Verdict.EASY and gpu.total > 0.79 * 24 * GIB
    assert on_cpu("SmolLM2-135M", 24 * GIB, context=2048, sequences=4).plan.pool == CPU_POOL


def test_given_pool_may_be_shared() -> None:
    choice = on_cpu("SmolLM2-135M", 20 * GIB, context=2048, sequences=16, pool=256 << 20)
    assert not choice.refusal
    assert (choice.plan.pool, choice.plan.context, choice.plan.sequences) == (256 << 20, 2048, 16)


def test_given_pool_must_hold_one_sequence() -> None:
    choice = on_cpu("Llama-2-7B", 40 * GIB, context=4096, pool=GIB)
    assert choice.refusal == "the KV cache holds 1,920 tokens, less than one sequence of 4,096"


def test_given_pool_must_fit() -> None:
    assert on_cpu("SmolLM2-135M", 4 * GIB, pool=8 * GIB).refusal == "what was set does not fit"


def test_given_context_may_go_over_the_mark_for_one_sequence() -> None:
    choice = on_gpu("Llama-2-7B", 17 * GIB, context=4096)
    assert choice.tight
    assert choice.plan.layout.sequences(choice.plan.pool, 4096) == 1
    assert on_gpu("Llama-2-7B", 16 * GIB, context=4096).refusal == "not even one sequence fits"


def test_little_memory_still_serves_something() -> None:
    choice = on_cpu("SmolLM2-135M", 2 * GIB)
    assert choice.tight and choice.plan.context >= 2048


def test_model_that_leaves_no_room_is_refused() -> None:
    for choice in (on_cpu("Llama-2-7B", 14 * GIB), on_gpu("DeepSeek-V3", 80 * GIB)):
        assert choice.refusal == "the model leaves no room for a KV cache"
        assert choice.plan.verdict is Verdict.NO


def test_model_without_a_growing_cache_is_taken() -> None:
    from inference_node.memory.shapes import from_config

    mamba = {"model_type": "mamba", "num_hidden_layers": 4, "hidden_size": 256, "vocab_size": 1000, "state_size": 16}
    choice = choose(Planner(from_config(mamba), Weights(0), Options(device="cpu"), 8 * GIB), Wanted())
    assert not choice.refusal and choice.plan.sequences >= 1


SETTINGS = st.builds(
    Wanted,
    context=st.sampled_from([0, 1, 512, 4096, 200_000]),
    sequences=st.sampled_from([0, 1, 8, 1024]),
    pool=st.sampled_from([0, 1, 64 << 20, 1 << 30, 1 << 38]),
    share=st.sampled_from([0.1, 0.8, 1.0]),
)


@given(shapes(), options(), st.integers(24, 40), SETTINGS)
def test_what_is_chosen_fits_and_what_is_set_is_kept(shape: Shape, given_: Options, power: int, wanted: Wanted) -> None:
    choice = choose(Planner(shape, Weights(0), given_, 1 << power), wanted)
    plan = choice.plan
    if choice.refusal:
        return
    assert plan.verdict is not Verdict.NO
    assert plan.layout.sequences(plan.pool, plan.context) >= 1
    assert plan.sequences >= 1 and plan.context >= 1
    assert plan.context == wanted.context or (not wanted.context and plan.context <= shape.max_context)
    assert plan.sequences == (wanted.sequences or plan.sequences)
    assert plan.pool == (wanted.pool or plan.pool)
