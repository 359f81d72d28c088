"""Finding a checkpoint, and refusing what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference_node.quantize.schemes import QuantizeError
from inference_node.quantize.source import locate


def checkpoint(folder: Path, config: object = None, tokenizer: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} if config is None else config))
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF" + bytes(60))
    return path


def refused(path: Path, sentence: str) -> None:
    with pytest.raises(QuantizeError, match=sentence):
        locate(path)


def test_a_folder_of_safetensors_is_found_with_its_tokenizer(tmp_path: Path) -> None:
    found = locate(checkpoint(tmp_path / "m"))
    assert (found.gguf, found.size) == (None, 100)
    assert found.tokenizer_files == ("tokenizer.json", "chat_template.jinja")


def test_one_safetensors_file_stands_for_its_folder(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    assert locate(folder / "model.safetensors") == locate(folder)


def test_a_gguf_file_and_the_folder_that_holds_only_it_are_the_same(tmp_path: Path) -> None:
    file = gguf(tmp_path / "tiny.gguf")
    assert locate(file) == locate(tmp_path)
    assert (locate(file).gguf, locate(file).size) == ("tiny.gguf", 64)


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "none does not exist; name a GGUF file or a folder")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, r"holds no \*.safetensors and no \*.gguf")


def test_several_gguf_files_are_refused_by_name(tmp_path: Path) -> None:
    gguf(tmp_path / "a.gguf")
    gguf(tmp_path / "b.gguf")
    refused(tmp_path, r"several GGUF files \(a.gguf, b.gguf\); name the one")


def test_a_part_of_a_split_gguf_is_refused(tmp_path: Path) -> None:
    refused(gguf(tmp_path / "m-00001-of-00003.gguf"), "one of 3 parts; merge them")


def test_a_file_that_is_no_gguf_inside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"<html>")
    refused(tmp_path / "m.gguf", "does not begin as a GGUF file does")


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"x")
    refused(tmp_path / "m.bin", "neither a GGUF nor a safetensors file")


def test_safetensors_without_config_are_refused(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "m") / "config.json").unlink()
    refused(tmp_path / "m", "config.json is missing")


@pytest.mark.parametrize(("text", "sentence"), [("{", "not valid JSON"), ("[]", "not a JSON object")])
def test_a_damaged_config_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (checkpoint(tmp_path / "m") / "config.json").write_text(text)
    refused(tmp_path / "m", sentence)


def test_safetensors_without_tokenizer_are_refused(tmp_path: Path) -> None:
    refused(checkpoint(tmp_path / "m", tokenizer=False), "holds no tokenizer")


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    refused(checkpoint(tmp_path / "m", {"quantization_config": {"quant_method": "awq"}}), r"quantized already \(awq\)")


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "lacks 1 of its 2 shards, model-2.safetensors first")


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, "cannot be read as an index of shards")
