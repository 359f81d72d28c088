"""Models found, their weights' bytes told without reading them, and broken files refused in a sentence."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory import checkpoint, hub
from inference_node.memory.checkpoint import CheckpointError, find, read_json
from inference_node.memory.shapes import ShapeError
from tests.unit.node.memory.files import folder, gguf, llama_pairs, safetensors, tensor

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No test sees the models of this machine, or asks for others."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def indexed(path: Path, shards: dict[str, dict[str, tuple[str, int]]], total: Any = 123) -> Path:
    table = {}
    for shard, tensors in shards.items():
        safetensors(path / shard, tensors)
        table.update(dict.fromkeys(tensors, shard))
    index = {"metadata": {"total_size": total}, "weight_map": table}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def test_one_file(tmp_path: Path) -> None:
    size = safetensors(folder(tmp_path / "m") / "model.safetensors", {"a": ("BF16", 1000), "b": ("BF16", 24)})
    found = find(str(tmp_path / "m"))
    assert (found.weights.stored, found.weights.wide, found.form) == (size, 0, "safetensors")
    assert (found.shape.name, found.weights.source) == ("m", "1 file")


def test_file_names_its_folder(tmp_path: Path) -> None:
    safetensors(folder(tmp_path / "m") / "model.safetensors", {"a": ("BF16", 10)})
    assert find(str(tmp_path / "m" / "model.safetensors")).weights.stored == 20


def test_shards_by_their_index_and_no_other_file(tmp_path: Path) -> None:
    path = indexed(
        folder(tmp_path / "m"), {"m-1.safetensors": {"a": ("F16", 10)}, "m-2.safetensors": {"b": ("F16", 5)}}
    )
    safetensors(path / "consolidated.safetensors", {"a": ("F16", 15)})
    assert find(str(path)).weights.stored == 30


def test_second_copy_in_one_piece_does_not_count(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    safetensors(path / "model.safetensors", {"a": ("BF16", 10)})
    safetensors(path / "consolidated.safetensors", {"a": ("BF16", 10)})
    assert find(str(path)).weights.stored == 20


def test_wide_tensors_are_told_by_the_headers(tmp_path: Path) -> None:
    safetensors(folder(tmp_path / "m") / "model.safetensors", {"a": ("F32", 10), "b": ("BF16", 10)})
    weights = find(str(tmp_path / "m")).weights
    assert (weights.stored, weights.wide) == (60, 40)


def test_quantized_checkpoint_is_taken_as_it_is(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", quantization_config={"quant_method": "awq", "bits": 4})
    safetensors(path / "model.safetensors", {"a": ("I8", 10), "scales": ("F32", 10)})
    weights = find(str(path)).weights
    assert (weights.stored, weights.wide) == (50, 0)


def test_older_files_count_too(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", dtype="float32")
    (path / "pytorch_model.bin").write_bytes(bytes(400))
    weights = find(str(path)).weights
    assert (weights.stored, weights.wide) == (400, 400)
    assert find(str(path)).form == "bin"


def test_folder_without_weights_is_summed_by_its_shape(tmp_path: Path) -> None:
    found = find(str(folder(tmp_path / "m")))
    assert (found.weights.stored, found.form) == (0, "shape")


def test_tokenizer_may_shorten_the_context(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    for limit, context in ((2048, 2048), (10**30, 8192), ("x", 8192), (0, 8192)):
        (path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
        assert find(str(path)).shape.max_context == context
    (path / "tokenizer_config.json").write_text("{")
    assert find(str(path)).shape.max_context == 8192


def test_missing_shard_is_named(tmp_path: Path) -> None:
    path = indexed(
        folder(tmp_path / "m"), {"m-1.safetensors": {"a": ("F16", 10)}, "m-2.safetensors": {"b": ("F16", 5)}}
    )
    (path / "m-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"m-2\.safetensors is missing; fetch the model again"):
        find(str(path))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "does not hold a JSON object"),
        ("", "is not valid JSON"),
        ("\x00\x01", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_corrupt_configuration_is_one_sentence(tmp_path: Path, raw: str, why: str) -> None:
    path = folder(tmp_path / "m")
    (path / "config.json").write_text(raw)
    with pytest.raises(CheckpointError, match=why) as caught:
        find(str(path))
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_field_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="hidden_size is missing"):
        find(str(folder(tmp_path / "m", hidden_size=None)))


def test_absurdly_large_json_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_MOST_JSON", 10)
    with pytest.raises(CheckpointError, match="far more than such a file has"):
        read_json(folder(tmp_path / "m") / "config.json")


@pytest.mark.parametrize(
    "index",
    [
        {"weight_map": [1]},
        {},
        {"weight_map": {"a": 5}},
        {"weight_map": {"a": "../../etc/passwd"}},
        {"weight_map": {"a": ".hidden"}},
    ],
)
def test_broken_index_is_refused(tmp_path: Path, index: Any) -> None:
    path = folder(tmp_path / "m")
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json"):
        find(str(path))


def broken(path: Path, raw: bytes) -> str:
    (folder(path) / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        find(str(path))
    return str(caught.value)


def head(entries: Any, data: int = 0) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(data)


@pytest.mark.parametrize("raw", [b"", b"1234567", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 99) + b"{}"])
def test_file_that_is_no_safetensors_is_refused(tmp_path: Path, raw: bytes) -> None:
    assert "is no safetensors file, or only a part of one" in broken(tmp_path / "m", raw)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        {"a": 1},
        {"a": {}},
        {"a": {"dtype": "F32", "data_offsets": [5, 1]}},
        {"a": {"data_offsets": "xy", "dtype": 1}},
    ],
)
def test_header_that_makes_no_sense_is_refused(tmp_path: Path, entries: Any) -> None:
    assert "has a header that makes no sense" in broken(tmp_path / "m", head(entries, 10))


def test_truncated_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    safetensors(path / "model.safetensors", {"a": ("F32", 100)}, cut=1)
    with pytest.raises(CheckpointError, match=r"has [\d,]+ bytes and should have [\d,]+; fetch it again"):
        find(str(path))


def test_many_headers_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_READ_BUDGET", 1)
    safetensors(folder(tmp_path / "m") / "model.safetensors", {"a": ("F32", 10)})
    weights = find(str(tmp_path / "m")).weights
    assert (weights.stored, weights.wide) == (40, 0)


@given(raw=st.binary(max_size=200))
def test_random_files_are_a_checkpoint_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = folder(tmp_path_factory.mktemp("random"))
    for name, content in (("model.safetensors", raw), ("model.safetensors.index.json", raw), ("config.json", raw)):
        (path / name).write_bytes(content)
        with contextlib.suppress(CheckpointError, ShapeError):
            find(str(path))


def test_model_in_the_hubs_cache(own_cache: Path) -> None:
    snapshot = folder(own_cache / "models--org--name" / "snapshots" / COMMIT)
    refs = own_cache / "models--org--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    found = find("org/name")
    assert (found.shape.name, found.weights.source) == ("org/name", "its shape; no weights are here yet")
    indexed(snapshot, {"m-1.safetensors": {"a": ("F16", 10)}}, total=5000)
    assert find("org/name@main").weights.stored == 20
    (snapshot / "m-1.safetensors").unlink()
    weights = find("org/name", COMMIT).weights
    assert (weights.stored, weights.source) == (5000, "the weight index")


@pytest.mark.parametrize("total", [None, -5, "many", True, 1e300])
def test_index_with_an_absurd_total_does_not_count(own_cache: Path, total: Any) -> None:
    snapshot = folder(own_cache / "models--org--name" / "snapshots" / COMMIT)
    indexed(snapshot, {"m-1.safetensors": {"a": ("F16", 10)}}, total=total)
    (snapshot / "m-1.safetensors").unlink()
    assert find("org/name", COMMIT).weights.stored == 0


def test_model_that_has_to_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = folder(tmp_path / "fetched")
    asked: list[tuple[Any, ...]] = []

    def fetch(name: str, revision: str, *, offline: bool) -> hub.Fetched:
        asked.append((name, revision, offline))
        return hub.Fetched(path, 777)

    monkeypatch.setattr(hub, "fetch", fetch)
    found = find("org/new@v2")
    assert (found.weights.stored, found.weights.source) == (777, "the hub's list of files")
    assert asked == [("org/new", "v2", False)]


def test_well_known_name_needs_no_files() -> None:
    found = find("Llama-2-7B")
    assert (found.path, found.form, found.shape.name) == (None, "shape", "llama-2-7b")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/no/such/folder", "does not exist; name a folder"),
        ("./nothing", "does not exist"),
        ("missing.gguf", "does not exist"),
        ("lama-2-7b", "no well-known model; well-known names like it are llama-2-7b"),
        ("xyzzy", "no well-known model; name a folder with config.json, a GGUF file or a hub id"),
        ("org/unheard-of", "org/unheard-of is not in the local cache"),
        ("what is this", "no folder, no file and no hub id"),
    ],
)
def test_what_is_nowhere_is_one_sentence(name: str, why: str) -> None:
    with pytest.raises(CheckpointError, match=why) as caught:
        find(name)
    assert "\n" not in str(caught.value)


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json and no GGUF file"):
        find(str(tmp_path))


def put_gguf(path: Path, elements: int = 64) -> Path:
    table = [tensor("token_embd.weight", (elements, 1), 1, 0)]
    path.write_bytes(gguf(llama_pairs(), table, data=elements * 2))
    return path


def test_gguf_file_or_the_folder_of_one(tmp_path: Path) -> None:
    path = put_gguf(tmp_path / "model-q4.gguf")
    for name in (path, tmp_path):
        found = find(str(name))
        assert (found.form, found.weights.stored, found.shape.quantization) == ("gguf", 128, "gguf")
        assert (found.shape.name, found.shape.layers) == ("model-q4", 4)


def test_gguf_in_parts(tmp_path: Path) -> None:
    for i in (1, 2):
        put_gguf(tmp_path / f"model-{i:05}-of-00002.gguf")
    found = find(str(tmp_path))
    assert (found.weights.stored, found.weights.source) == (256, "2 files")
    (tmp_path / "model-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.gguf cannot be read"):
        find(str(tmp_path / "model-00001-of-00002.gguf"))


def test_several_gguf_files_must_be_told_apart(tmp_path: Path) -> None:
    put_gguf(tmp_path / "a.gguf")
    put_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"has 2 GGUF files; name one of them, such as a\.gguf"):
        find(str(tmp_path))


def test_gguf_of_a_newer_version_is_refused_with_it(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(gguf(llama_pairs(), version=9))
    with pytest.raises(CheckpointError, match="GGUF version 9, newer than"):
        find(str(path))


def test_gguf_that_says_too_little_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "thin.gguf"
    path.write_bytes(gguf(llama_pairs()[:2]))
    with pytest.raises(ShapeError, match=r"thin\.gguf: hidden_size is missing"):
        find(str(path))
