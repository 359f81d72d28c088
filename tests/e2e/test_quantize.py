"""Real checkpoints, really quantized: the numbers are right, and vLLM loads the result and answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference_node.quantize import SCHEMES, QuantizeError, demo
from inference_node.quantize.convert import quantize

torch = pytest.importorskip("torch", reason="torch is not installed: make setup installs it")
pytest.importorskip("vllm", reason="vLLM is not installed: make setup installs it")

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]


def ask(model: Path, question: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.ask_vllm", str(model), question],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama in safetensors, with a tokenizer of its own."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(32)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(folder)
    return folder


def dequantized(tensors: dict[str, Any], name: str, scheme: str) -> Any:
    """The weights that an engine would compute with, from what is stored; written from the format's description."""
    scale = tensors[f"{name}.weight_scale"].float()
    if scheme == "w8a8":
        return tensors[f"{name}.weight"].float() * scale
    packed = tensors[f"{name}.weight_packed"]
    nibbles = torch.stack([(packed >> (4 * i)) & 0xF for i in range(8)], dim=-1).flatten(-2) - 8
    return (nibbles.float().unflatten(-1, (-1, 64)) * scale.unsqueeze(-1)).flatten(-2)


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_every_weight_is_within_half_a_step_of_the_original(tiny: Path, tmp_path: Path, scheme: str) -> None:
    from safetensors.torch import load_file

    seen: list[float] = []
    result = quantize(tiny, tmp_path / "out", scheme, lambda fraction, text: seen.append(fraction))
    before, after = load_file(tiny / "model.safetensors"), load_file(result.path / "model.safetensors")
    names = [n.removesuffix(".weight") for n in before if n.endswith("_proj.weight")]
    assert len(names) == result.layers == 14
    for name in names:
        original = before[f"{name}.weight"].float()
        step = after[f"{name}.weight_scale"].float()
        group = original.shape[-1] // step.shape[-1]
        error = (dequantized(after, name, scheme) - original).abs() / step.repeat_interleave(group, dim=-1)
        # Half a step; more at the ends of the range alone, where the scale, rounded to 16 bits, is a little small.
        assert error.max() <= 0.501 + 2 ** (SCHEMES[scheme].weight_bits - 1) * 2**-8
        assert error.mean() < 0.26
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert result.output_bytes < result.source_bytes


def test_tokenizer_files_are_copied_as_they_are(tiny: Path, tmp_path: Path) -> None:
    result = quantize(tiny, tmp_path / "out", "w8a8")
    assert result.chat_template
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (result.path / name).read_bytes() == (tiny / name).read_bytes()


def test_a_result_cannot_be_quantized_again(tiny: Path, tmp_path: Path) -> None:
    result = quantize(tiny, tmp_path / "out", "w4a16")
    with pytest.raises(QuantizeError, match=r"quantized already \(compressed-tensors\)"):
        quantize(result.path, tmp_path / "again", "w8a8")


def test_layers_that_do_not_divide_into_groups_are_refused(tmp_path: Path, tiny: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    odd = tmp_path / "odd"
    config = LlamaConfig(
        hidden_size=96, intermediate_size=192, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    LlamaForCausalLM(config).save_pretrained(odd)
    (odd / "tokenizer.json").write_bytes((tiny / "tokenizer.json").read_bytes())
    with pytest.raises(QuantizeError, match="has 96 inputs, not a multiple of w4a16's group of 64; use scheme w8a8"):
        quantize(odd, tmp_path / "out", "w4a16")
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "model.safetensors").write_bytes(b"not a tensor file at all")
    with pytest.raises(QuantizeError, match="cannot be read as a causal language model"):
        quantize(broken, tmp_path / "out", "w8a8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken"]


@pytest.mark.e2e
def test_the_demo_model_in_w8a8_answers_in_vllm() -> None:
    answer = ask(demo.prepare(), "What is the capital of France?")
    assert "Paris" in answer["text"]
    assert answer["quantization"] == "compressed-tensors"


@pytest.mark.e2e
def test_the_same_model_in_w4a16_answers_in_vllm(tmp_path: Path) -> None:
    result = quantize(demo._source(), tmp_path / "w4a16", "w4a16")
    assert result.output_bytes < 120 << 20
    answer = ask(result.path, "What is the capital of France?")
    assert "Paris" in answer["text"]
    assert answer["quantization"] == "compressed-tensors"


def test_the_demo_model_carries_the_sampling_its_authors_recommend() -> None:
    import json

    from inference_node.quantize import demo

    config = json.loads((demo.prepare() / "generation_config.json").read_text())
    assert config["temperature"] == demo.SAMPLING["temperature"]
    assert config["eos_token_id"] == 2
