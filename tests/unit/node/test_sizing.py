"""Memory planned before the engine starts: what is filled in, what is refused, and what is left to the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference_node import sizing
from inference_node.engines import vllm_env
from inference_node.memory import device
from inference_node.memory.device import Device
from inference_node.memory.known import KNOWN
from shared.config.schema import ConfigError, InferenceConfig

GIB = 1 << 30
CPU = Device("cpu", "memory of this machine", 24 * GIB, 20 * GIB)
GPU = Device("gpu", "Card", 24 * GIB, 23 * GIB)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_env, "is_cpu_build", lambda: False)


@pytest.fixture(autouse=True)
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_env, "is_cpu_build", lambda: True)


def model(folder: Path, name: str, **more: Any) -> str:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**KNOWN[name], **more}))
    return str(path)


def config(model: str, **values: Any) -> InferenceConfig:
    return InferenceConfig(**({"engine": "vllm", "model": model} | values))


def test_what_is_left_open_is_filled_in(tmp_path: Path) -> None:
    sized = sizing.fit(config(model(tmp_path, "smollm2-135m")), CPU)
    assert (sized.context, sized.config.max_num_seqs, sized.config.kv_cache_memory_bytes) == (8192, 16, GIB)
    assert sized.config.max_seq_len == 0  # vLLM knows the model's own limit best; the context is handed over beside it


def test_what_is_set_is_kept(tmp_path: Path) -> None:
    wanted = config(model(tmp_path, "smollm2-135m"), max_seq_len=2048, max_num_seqs=3, kv_cache_memory_bytes=256 << 20)
    sized = sizing.fit(wanted, CPU)
    assert (sized.config, sized.context) == (wanted, 0)


def test_a_node_that_cannot_hold_its_model_is_refused_with_the_sums(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        sizing.fit(config(model(tmp_path, "deepseek-v3")), CPU)
    text = str(caught.value)
    assert text.startswith("inference: the model does not fit in memory as configured\ndeepseek-v3: 671.03 B")
    for part in ("weights", "KV cache", "prefill peak", "runtime reserve", "total", "To make it fit:", "GiB of memory"):
        assert part in text
    assert len(text.splitlines()) <= 24 and max(map(len, text.splitlines())) <= 80


def test_both_numbers_that_do_not_fit_are_refused_with_what_would(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        sizing.fit(config(model(tmp_path, "llama-2-7b"), max_seq_len=4096, max_num_seqs=8), CPU)
    text = str(caught.value)
    assert "8 of 2 GiB: 524,288 bytes a token" in text
    assert "max_num_seqs: 2" in text and "max_seq_len: " in text
    assert "at full length, others wait" in text  # by a KV cache of a size


def test_what_is_offered_instead_is_then_taken(tmp_path: Path) -> None:
    path = model(tmp_path, "llama-2-7b")
    wanted = {"max_seq_len": 4096, "max_num_seqs": 8}
    with pytest.raises(ConfigError) as caught:
        sizing.fit(config(path, **wanted), CPU)
    offers = 0
    for line in str(caught.value).partition("To make it fit:\n")[2].splitlines():
        name, _, value = line.split("  ")[1].partition(": ")
        if name in ("max_num_seqs", "max_seq_len", "kv_cache_memory_bytes") and value.isdigit():
            offers += 1
            assert sizing.fit(config(path, **{**wanted, name: int(value)}), CPU).choice is not None
    assert offers == 3


def test_cache_that_is_too_small_for_one_sequence_is_refused(tmp_path: Path) -> None:
    wanted = config(model(tmp_path, "llama-2-7b"), max_seq_len=4096, kv_cache_memory_bytes=GIB)
    with pytest.raises(ConfigError, match="holds 1,920 tokens, less than one sequence of 4,096"):
        sizing.fit(wanted, CPU)


def test_over_the_mark_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = config(model(tmp_path, "llama-2-7b"), max_seq_len=4096, max_num_seqs=2)
    with caplog.at_level("INFO", logger="laya.memory"):
        sized = sizing.settle(wanted, CPU)
    assert sized.config.max_num_seqs == 2
    (record,) = caplog.records
    assert (record.levelname, record.getMessage().split()[0]) == ("WARNING", "memory_tight")


def test_plan_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="laya.memory"):
        sizing.settle(config(model(tmp_path, "smollm2-135m")), CPU)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage().split()[0]) == ("INFO", "memory_planned")


@pytest.mark.usefixtures("gpu_build")
def test_gpu_is_filled_to_its_share_of_what_is_free(tmp_path: Path) -> None:
    path = model(tmp_path, "llama-2-7b")
    for share in (0.8, 0.9):
        sized = sizing.fit(config(path, gpu_memory_utilization=share), GPU)
        assert sized.choice is not None
        assert 0.97 * share <= sized.choice.plan.total / GPU.free <= share
        assert sized.config.kv_cache_memory_bytes == sized.choice.plan.pool


@pytest.mark.usefixtures("gpu_build")
def test_steps_of_a_gpu_follow_from_all_its_memory(tmp_path: Path) -> None:
    busy = Device("gpu", "Card", 80 * GIB, 60 * GIB)
    sized = sizing.fit(config(model(tmp_path, "llama-3-8b")), busy)
    assert sized.choice is not None and sized.choice.plan.step == 8192


@pytest.mark.usefixtures("gpu_build")
def test_image_encoder_on_a_gpu_is_measured_by_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "seeing"
    path.mkdir()
    text = {k: v for k, v in KNOWN["gemma-3-4b"].items()}
    (path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "vision_config": {"a": 1}, "text_config": text})
    )
    wanted = config(str(path))
    sized = sizing.fit(wanted, GPU)
    assert (sized.config, sized.choice is not None) == (wanted, True)
    with pytest.raises(ConfigError, match="does not fit"):
        sizing.fit(wanted, Device("gpu", "Card", 4 * GIB, 4 * GIB))


def test_settings_of_the_engine_are_summed_with(tmp_path: Path) -> None:
    path = model(tmp_path, "llama-3-8b")
    arguments = {
        "kv-cache-dtype": "fp8",
        "tensor_parallel_size": 2,
        "block_size": 64,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": False,
    }
    sized = sizing.fit(
        config(path, engine_args=arguments, dtype="float32", max_seq_len=1024), Device("cpu", "", 0, 99 * GIB)
    )
    assert sized.choice is not None
    plan = sized.choice.plan
    assert plan.layout.token_bytes == 32 * 2 * 4 * 128  # fp8, and half of eight heads
    assert (plan.layout.block_tokens, plan.step, plan.options.prefix_caching) == (64, 512, False)
    assert plan.weight_bytes == 4


@pytest.mark.parametrize("name", ["speculative_config", "enable-lora", "cpu_offload_gb", "num_gpu_blocks_override"])
def test_setting_that_is_not_summed_leaves_it_to_the_engine(tmp_path: Path, name: str) -> None:
    wanted = config(model(tmp_path, "deepseek-v3"), engine_args={name: 1})
    sized = sizing.fit(wanted, CPU)
    assert (sized.config, sized.choice) == (wanted, None)
    assert name.replace("-", "_") in sized.why


def test_not_planned_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="laya.memory"):
        sizing.settle(config(model(tmp_path, "llama-2-7b"), engine_args={"enable_lora": True}), CPU)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage().split()[0]) == ("WARNING", "memory_not_planned")


def test_model_that_says_too_little_is_left_to_the_engine(tmp_path: Path) -> None:
    sized = sizing.fit(config(model(tmp_path, "llama-2-7b", vocab_size=None)), CPU)
    assert sized.choice is None and "vocab_size is missing" in sized.why


def test_unknown_quantization_is_left_to_the_engine(tmp_path: Path) -> None:
    sized = sizing.fit(config(model(tmp_path, "llama-2-7b"), quantization="torchao"), CPU)
    assert sized.choice is None and "torchao" in sized.why


def test_scheme_that_the_checkpoint_names_itself_is_its_own(tmp_path: Path) -> None:
    path = model(tmp_path, "smollm2-135m", quantization_config={"quant_method": "compressed-tensors"})
    assert sizing.fit(config(path, quantization="w8a8"), CPU).choice is not None


def test_machine_that_tells_nothing_is_left_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find", lambda **_: None)
    sized = sizing.fit(config(model(tmp_path, "smollm2-135m")))
    assert sized.choice is None and "does not tell" in sized.why


def test_model_that_cannot_be_looked_at_is_left_to_the_engine(tmp_path: Path) -> None:
    assert "not in the local cache" in sizing.fit(config("org/unheard-of"), CPU).why
    other = tmp_path / "other"
    other.mkdir()
    (other / "params.json").write_text("{}")
    assert "has no config.json" in sizing.fit(config(str(other)), CPU).why


def test_corrupt_configuration_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path, "llama-2-7b")
    (Path(path) / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(ConfigError, match=r"inference\.model: .*config\.json is not valid JSON"):
        sizing.fit(config(path), CPU)


def test_latent_attention_asks_for_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path, "deepseek-v2")
    huge = Device("cpu", "", 0, 4096 * GIB)
    for tiles, block in ((True, 128), (False, 16)):
        monkeypatch.setattr(device, "has_amx", lambda found=tiles: found)
        choice = sizing.fit(config(path), huge).choice
        assert choice is not None and choice.plan.layout.block_tokens == block


def test_planning_imports_no_engine(tmp_path: Path) -> None:
    code = (
        "import sys; from inference_node import sizing; from shared.config.schema import InferenceConfig;"
        f"sizing.fit(InferenceConfig(engine='vllm', model={model(tmp_path, 'smollm2-135m')!r}));"
        "print([m for m in ('torch', 'vllm', 'transformers', 'huggingface_hub', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_laya_node_refuses_before_anything_starts(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    argv = [sys.executable, "-m", "inference_node.main", "--engine", "vllm", "--port", "0"]
    done = subprocess.run(
        [*argv, "--model", model(tmp_path, "deepseek-v3")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "Does not fit" in done.stderr and "Traceback" not in done.stderr
    assert "listening" not in done.stdout
