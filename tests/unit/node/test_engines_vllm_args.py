"""From the configuration to vLLM's arguments: what is set, what is refused, and with which words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines import vllm_args
from inference_node.engines.vllm_args import Host
from shared.config.schema import ConfigError, InferenceConfig

ENGINE = {"block_size", "max_num_batched_tokens", "kv_cache_dtype", "kv_events_config", "tensor_parallel_size", "seed"}
APP = {"chat_template", "tool_call_parser", "trust_request_chat_template"}
CPU = Host(cpu=True, memory=16 << 30)
GPU = Host(cpu=False, memory=64 << 30)


def config(**values: Any) -> InferenceConfig:
    return InferenceConfig(**({"engine": "vllm", "model": "org/model"} | values))


def test_hub_id_may_carry_its_revision() -> None:
    assert vllm_args.split_model(config(model="org/model@v2")) == ("org/model", "v2")
    assert vllm_args.split_model(config(model="org/model", revision="v3")) == ("org/model", "v3")
    assert vllm_args.split_model(config(model="org/model@v2", revision="v2")) == ("org/model", "v2")


def test_folder_with_an_at_sign_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model@home"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert vllm_args.split_model(config(model=str(folder))) == (str(folder), "")


def test_folder_without_a_model_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"inference\.model: there is no folder .*/none;"):
        vllm_args.split_model(config(model=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match=r"inference\.model: the folder .* holds no config\.json"):
        vllm_args.split_model(config(model=str(tmp_path)))


def test_two_revisions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"inference\.revision: v3 .* \(v2\)"):
        vllm_args.split_model(config(model="org/model@v2", revision="v3"))


def test_revision_holds_for_the_tokenizer_too() -> None:
    args = vllm_args.base(config(model="org/model@v2"), ["m"], GPU)
    assert (args["model"], args["revision"], args["tokenizer_revision"]) == ("org/model", "v2", "v2")


def test_safe_defaults_on_the_cpu() -> None:
    args = vllm_args.base(config(), ["m", "alias"], CPU)
    assert args["served_model_name"] == ["m", "alias"]
    assert args["max_num_seqs"] == 16
    assert args["kv_cache_memory_bytes"] == 1 << 30
    assert args["enforce_eager"] is True
    assert args["scheduling_policy"] == "priority"
    assert args["trust_remote_code"] is False
    assert args["distributed_executor_backend"] == vllm_args.UNIPROC
    assert args["max_num_batched_tokens"] == 256
    assert "gpu_memory_utilization" not in args


def test_gpu_keeps_vllms_own_sizes() -> None:
    args = vllm_args.base(config(gpu_memory_utilization=0.8), ["m"], GPU)
    assert args["gpu_memory_utilization"] == 0.8
    assert args["enforce_eager"] is False
    for name in ("max_num_seqs", "kv_cache_memory_bytes", "max_num_batched_tokens", "distributed_executor_backend"):
        assert name not in args


def test_named_settings_reach_vllm() -> None:
    args = vllm_args.base(
        config(max_num_seqs=2, enforce_eager=True, quantization="awq", dtype="float16", kv_cache_memory_bytes=1 << 28),
        ["m"],
        GPU,
    )
    assert args["max_num_seqs"] == 2
    assert args["enforce_eager"] is True
    assert args["quantization"] == "awq"
    assert args["dtype"] == "float16"
    assert args["kv_cache_memory_bytes"] == 1 << 28


@pytest.mark.parametrize("name", ["", "w8a8", "W4A16", "none"])
def test_scheme_that_the_checkpoint_names_itself_is_left_to_it(name: str) -> None:
    assert "quantization" not in vllm_args.base(config(quantization=name), ["m"], CPU)


def test_no_media_domain_means_no_remote_media() -> None:
    # vLLM would take an empty list for "any".
    assert vllm_args.base(config(), ["m"], CPU)["allowed_media_domains"] == ["no-remote-media.invalid"]
    given_ = config(allowed_media_domains=["example.org"])
    assert vllm_args.base(given_, ["m"], CPU)["allowed_media_domains"] == ["example.org"]


def test_asking_for_compilation_on_the_cpu_switches_eager_off() -> None:
    for name in ("optimization_level", "optimization-level"):
        args = vllm_args.base(config(engine_args={name: 2}), ["m"], CPU)
        assert args["enforce_eager"] is False


def test_model_spread_over_ranks_keeps_vllms_executor() -> None:
    args = vllm_args.base(config(engine_args={"tensor_parallel_size": 2}), ["m"], CPU)
    assert "distributed_executor_backend" not in args


def test_step_is_never_smaller_than_the_batch() -> None:
    assert vllm_args.base(config(max_num_seqs=600), ["m"], CPU)["max_num_batched_tokens"] == 600


@pytest.mark.parametrize(
    ("memory", "expected"), [(0, 1 << 30), (64 << 30, 1 << 30), (2 << 30, 1 << 29), (160 << 20, 64 << 20)]
)
def test_kv_cache_is_a_quarter_of_memory_and_a_gib_at_most(memory: int, expected: int) -> None:
    assert vllm_args.default_kv_bytes(memory) == expected


def test_too_little_memory_for_any_kv_cache_is_said() -> None:
    with pytest.raises(ConfigError, match="100 MiB of memory are free"):
        vllm_args.default_kv_bytes(100 << 20)


def test_extra_arguments_are_sorted() -> None:
    out = vllm_args.sort_extra({"block-size": 64, "seed": 1, "chat_template": "x"}, ENGINE, APP)
    assert out.engine == {"block_size": 64, "seed": 1}
    assert out.app == {"chat_template": "x"}


def test_unknown_argument_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"engine_args\.blok_size: .* no such argument; did you mean block_size"):
        vllm_args.sort_extra({"blok_size": 1}, ENGINE, APP)
    with pytest.raises(ConfigError, match=r"engine_args\.zzz: vLLM has no such argument"):
        vllm_args.sort_extra({"zzz": 1}, ENGINE, APP)


@pytest.mark.parametrize(
    ("key", "setting"), [("max_model_len", "max_seq_len"), ("max-num-seqs", "max_num_seqs"), ("model", "model")]
)
def test_argument_with_a_setting_of_its_own_names_it(key: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine_args\.{key}: .* set inference\.{setting} instead"):
        vllm_args.sort_extra({key: 1}, ENGINE | {"max_model_len", "max_num_seqs", "model"}, APP)


@pytest.mark.parametrize(
    "key",
    ["scheduling_policy", "data_parallel_size", "swap_space", "trust_request_chat_template", "skip_tokenizer_init"],
)
def test_argument_that_breaks_a_promise_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine_args\.{key}: cannot be set: \w+"):
        vllm_args.sort_extra({key: 1}, ENGINE | {key}, APP)


def test_kv_events_stay_on_this_machine() -> None:
    on = {"enable_kv_cache_events": True}
    for bad in (on, on | {"endpoint": "tcp://*:5557"}, on | {"endpoint": "ipc:///x", "replay_endpoint": "tcp://*:1"}):
        with pytest.raises(ConfigError, match="must be an ipc:// path"):
            vllm_args.sort_extra({"kv_events_config": bad}, ENGINE, APP)
    good = on | {"endpoint": "ipc:///run/x", "replay_endpoint": None}
    assert vllm_args.sort_extra({"kv_events_config": good}, ENGINE, APP).engine == {"kv_events_config": good}
    vllm_args.sort_extra({"kv_events_config": {}}, ENGINE, APP)


def test_model_has_workers_only_when_it_is_spread_or_the_user_says_so() -> None:
    assert vllm_args.workers(config()) == 0
    assert vllm_args.workers(config(engine_args={"tensor-parallel-size": 2, "pipeline_parallel_size": "3"})) == 6
    assert vllm_args.workers(config(engine_args={"distributed-executor-backend": "mp"})) == 1


@pytest.mark.parametrize("value", [0, -1, "two", None, 1.5])
def test_ranks_that_are_no_number_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"engine_args\.tensor_parallel_size: must be a whole number from 1"):
        vllm_args.workers(config(engine_args={"tensor_parallel_size": value}))


Owner = dataclasses.make_dataclass(
    "Owner",
    [
        ("size", int | None, None),
        ("names", list[str] | None, None),
        ("inner", dict[str, int], None),
        ("later", "NoSuchType", None),  # as a type that only type checkers see
        ("_hidden", int, 0),
    ],
)


def test_values_take_the_declared_type() -> None:
    out = vllm_args.typed({"size": "3", "names": ["a"], "inner": {"a": "1"}, "later": 5}, Owner)
    assert out == {"size": 3, "names": ["a"], "inner": {"a": 1}, "later": 5}


def test_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"inference\.engine_args\.size: .*integer.*, not 'many'"):
        vllm_args.typed({"size": "many"}, Owner)


def test_only_public_fields_can_be_set() -> None:
    assert vllm_args.field_names(Owner) == {"size", "names", "inner", "later"}


def test_context_above_the_models_own_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"inference\.max_seq_len: 200000 is more than the 8192 tokens"):
        vllm_args.choose_context(200_000, 8192, 0, "m")


@pytest.mark.parametrize(
    ("asked", "own", "held", "expected"),
    [
        (2048, 8192, 512, 2048),  # as asked, whatever it costs
        (8192, 8192, 0, 8192),
        (0, 8192, 0, 4096),  # nothing known of memory
        (0, 2048, 0, 2048),
        (0, 8192, 46_000, 8192),  # room for several of the model's own
        (0, 131_072, 46_000, 11_500),
        (0, 131_072, 6000, 4096),  # a safe part
        (0, 131_072, 3000, 3000),  # all that the cache holds
    ],
)
def test_context_is_asked_for_or_safe(asked: int, own: int, held: int, expected: int) -> None:
    assert vllm_args.choose_context(asked, own, held, "m") == expected


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 24))
def test_automatic_context_fits_model_and_cache(own: int, held: int) -> None:
    chosen = vllm_args.choose_context(0, own, held, "m")
    assert 0 < chosen <= own
    assert chosen <= held


def test_kv_tokens_leave_vllms_null_block_out() -> None:
    # SmolLM2-135M in bfloat16: 23,040 bytes a token, 364 blocks in a GiB.
    assert vllm_args.kv_tokens(1 << 30, 23_040, 128) == 363 * 128
    assert vllm_args.kv_tokens(0, 23_040, 128) == 0
    assert vllm_args.kv_tokens(1 << 30, 0, 128) == 0


def test_long_prompts_get_half_a_step_unless_the_user_says_otherwise() -> None:
    assert vllm_args.lane_threshold(config(), 2048, 4096) == 1024
    assert vllm_args.lane_threshold(config(), 2048, 512) == 512
    assert vllm_args.lane_threshold(config(long_prompt_tokens=300), 2048, 4096) == 300
    assert vllm_args.lane_threshold(config(long_prompt_tokens=30_000), 2048, 4096) == 1024
    for name in ("long_prefill_token_threshold", "long-prefill-token-threshold"):
        assert vllm_args.lane_threshold(config(engine_args={name: 7}), 2048, 4096) is None


def test_lookahead_covers_two_steps_of_guesses_and_what_the_drafter_writes() -> None:
    assert vllm_args.lookahead_tokens(0, 0) == 0
    assert vllm_args.lookahead_tokens(5, 5) == 2 * 6 + 5
