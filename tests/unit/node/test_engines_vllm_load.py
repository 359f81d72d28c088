"""vLLM's own configuration made from ours, with the vLLM that is installed. No model is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_node.engines import vllm_load
from inference_node.engines.vllm_args import Arguments, Host
from shared.config.schema import ConfigError, InferenceConfig

pytest.importorskip("vllm")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """vLLM leaves variables behind for its own processes; they are not for those of other tests."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


HOST = Host(cpu=True, memory=8 << 30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that says what a small Llama is, and holds no weights."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def arguments(**values: Any) -> Arguments:
    return vllm_load.arguments(InferenceConfig(engine="vllm", **values), ["m", "alias"], HOST)


def load(**values: Any) -> vllm_load.Loaded:
    config = InferenceConfig(engine="vllm", **values)
    return vllm_load.load(config, vllm_load.arguments(config, ["m", "alias"], HOST))


def test_whole_configuration(model: str) -> None:
    loaded = load(model=model, max_seq_len=1024, kv_cache_memory_bytes=64 << 20)
    config = loaded.vllm_config
    assert loaded.own_context == 8192
    assert config.model_config.max_model_len == 1024
    assert config.model_config.served_model_name in ("m", ["m", "alias"])
    assert config.scheduler_config.policy == "priority"
    assert config.scheduler_config.max_num_seqs == 16
    assert config.scheduler_config.max_num_batched_tokens == 256
    assert config.scheduler_config.long_prefill_token_threshold == 128
    assert config.num_lookahead_tokens == 0
    assert config.cache_config.kv_cache_memory_bytes == 64 << 20
    assert config.model_config.enforce_eager
    assert config.model_config.trust_remote_code is False
    assert config.kv_events_config is None or not config.kv_events_config.enable_kv_cache_events
    assert loaded.app_args.served_model_name == ["m", "alias"]
    assert loaded.app_args.enable_prompt_tokens_details is True


def test_context_is_chosen_by_what_the_cache_holds(model: str) -> None:
    # 2 layers, 2 heads of 16, bfloat16: 256 bytes a token.
    assert load(model=model, kv_cache_memory_bytes=64 << 20).vllm_config.model_config.max_model_len == 8192
    assert load(model=model, kv_cache_memory_bytes=4 << 20).vllm_config.model_config.max_model_len == 4096


def test_context_above_the_models_own_is_refused_with_both_numbers(model: str) -> None:
    with pytest.raises(ConfigError, match=r"inference\.max_seq_len: 200000 is more than the 8192 tokens"):
        load(model=model, max_seq_len=200_000)


def test_bytes_per_token_of_the_model(model: str) -> None:
    config = load(model=model).vllm_config.model_config
    assert vllm_load.bytes_per_token(config, "auto") == 256
    assert vllm_load.bytes_per_token(config, "fp8") == 128
    assert vllm_load.bytes_per_token(object(), "auto") == 0


def test_engine_arguments_reach_vllm_with_their_types(model: str) -> None:
    loaded = load(
        model=model,
        engine_args={
            "max_num_batched_tokens": "512",
            "block-size": 64,
            "kv_events_config": {"enable_kv_cache_events": True, "endpoint": "ipc:///tmp/laya-events"},
            "response_role": "bot",
        },
    )
    config = loaded.vllm_config
    assert config.scheduler_config.max_num_batched_tokens == 512
    assert config.scheduler_config.long_prefill_token_threshold == 256
    assert config.cache_config.block_size == 64
    assert config.kv_events_config.endpoint == "ipc:///tmp/laya-events"
    assert loaded.app_args.response_role == "bot"


def test_long_prompts_of_the_node_are_long_for_vllm_too(model: str) -> None:
    scheduler = load(model=model, long_prompt_tokens=100).vllm_config.scheduler_config
    assert scheduler.long_prefill_token_threshold == 100
    own = load(model=model, engine_args={"long_prefill_token_threshold": 17}).vllm_config.scheduler_config
    assert own.long_prefill_token_threshold == 17


def test_wrong_engine_argument_is_refused_by_name(model: str) -> None:
    with pytest.raises(ConfigError, match=r"batched_token: .* did you mean max_num_batched_tokens"):
        arguments(model=model, engine_args={"max_num_batched_token": 512})
    with pytest.raises(ConfigError, match=r"engine_args\.max_num_batched_tokens: .*integer"):
        arguments(model=model, engine_args={"max_num_batched_tokens": "many"})
    with pytest.raises(ConfigError, match=r"set inference\.max_seq_len instead"):
        arguments(model=model, engine_args={"max_model_len": 512})


def test_settings_that_vllm_refuses_are_one_sentence(model: str) -> None:
    with pytest.raises(ConfigError, match=r"^inference: vLLM refuses these settings") as caught:
        load(model=model, max_num_seqs=64, engine_args={"max_num_batched_tokens": 8})
    assert "\n" not in str(caught.value)


def test_quantization_that_nobody_has_is_refused() -> None:
    vllm_load.known_quantization("awq")
    vllm_load.known_quantization("w8a8")
    with pytest.raises(ConfigError, match=r"inference\.quantization: vLLM has no q9000"):
        vllm_load.known_quantization("q9000")


def test_quantization_that_is_not_the_checkpoints_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=r"inference"):
        load(model=model, quantization="awq")


def test_model_that_is_not_here_is_refused_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match=r"inference\.model: laya/none is not on this machine, and the node is offline"
    ):
        load(model="laya/none")


def test_broken_config_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"inference\.model: .* cannot be loaded"):
        load(model=str(tmp_path))


def test_sentence_is_short_and_on_one_line() -> None:
    assert vllm_load.sentence(ValueError("a\n  b")) == "a b"
    assert vllm_load.sentence(KeyError()) == "KeyError"
    assert len(vllm_load.sentence(ValueError("x" * 5000))) < 700


async def test_cache_events_are_published_on_a_private_socket_unless_they_are_off(model: str) -> None:
    def events(config: dict[str, Any], **engine: Any) -> Any:
        args = arguments(model=model, engine_args=engine)
        return args, vllm_load.cache_events(InferenceConfig(engine="vllm", model=model, **config), args)

    args, made = events({})
    try:
        config = args.engine["kv_events_config"]
        assert config.enable_kv_cache_events and config.publisher == "zmq"
        assert config.endpoint == made.config["endpoint"] and config.endpoint.startswith("ipc:///")
    finally:
        await made.close()
    assert events({"kv_events": False})[1] is None
    assert events({}, enable_prefix_caching=False)[1] is None
    # A user's own publisher is left as it is, and followed where there is one.
    own = {"enable_kv_cache_events": True, "endpoint": "ipc:///run/mine.sock", "topic": "kv"}
    args, made = events({}, kv_events_config=own)
    assert (made.config["endpoint"], made.config["topic"]) == ("ipc:///run/mine.sock", "kv")
    assert args.engine["kv_events_config"].endpoint == "ipc:///run/mine.sock"
    await made.close()
    assert events({}, kv_events_config={"enable_kv_cache_events": False})[1] is None
