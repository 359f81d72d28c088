"""The head of a GGUF file, well made, broken, hostile and random."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory import gguf_header
from inference_node.memory.gguf_header import GgufError, GgufHeader, as_config, read
from tests.unit.node.memory.files import gguf, llama_pairs, number, pair, string, tensor, words


@pytest.fixture
def parse(tmp_path: Path):
    def of(raw: bytes) -> GgufHeader:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return read(path)

    return of


def whole(version: int = 3) -> bytes:
    """A file with two tensors: 256 by 32 in Q4_0, and 32 in F32."""
    table = [tensor("token_embd.weight", (256, 32), 2, 0), tensor("norm.weight", (32,), 0, 4608)]
    return gguf([*llama_pairs(), words("tokenizer.ggml.tokens", ["a"] * 32)], table, version=version, data=4608 + 128)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_are_read(parse, version: int) -> None:
    header = parse(whole(version))
    assert header.version == version
    assert header.metadata["llama.block_count"] == 4
    assert header.lengths == {"tokenizer.ggml.tokens": 32}
    assert header.sizes() == [256 * 32 // 32 * 18, 32 * 4]
    assert header.weights_bytes == 4736


def test_sizes_of_types_are_those_of_the_reference_library() -> None:
    gguf_py = pytest.importorskip("gguf")
    for kind, (block, size) in gguf_py.GGML_QUANT_SIZES.items():
        if int(kind) in gguf_header.TYPES:
            assert gguf_header.TYPES[int(kind)] == (kind.name, block, size)
    assert len(gguf_header.TYPES) >= 30


def test_every_kind_of_value_is_read(parse) -> None:
    raws = [
        pair("a", 0, b"\x07"),
        pair("b", 5, struct.pack("<i", -3)),
        pair("c", 6, struct.pack("<f", 0.5)),
        pair("d", 7, b"\x01"),
        pair("e", 10, struct.pack("<Q", 1 << 40)),
        pair("f", 12, struct.pack("<d", 0.25)),
        pair("g", 9, struct.pack("<IQ", 4, 2) + struct.pack("<II", 1, 2)),
        pair("h", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 2) + b"\x01\x02"),
    ]
    metadata = parse(gguf(raws)).metadata
    assert list(metadata.values()) == [7, -3, 0.5, True, 1 << 40, 0.25, [1, 2], [[1, 2]]]


def test_long_arrays_are_counted_and_not_kept(parse) -> None:
    raws = [words("tokens", ["x" * 9] * 300_000), pair("scores", 9, struct.pack("<IQ", 6, 300_000) + bytes(1_200_000))]
    header = parse(gguf([*raws, number("after", 1)]))
    assert header.lengths == {"tokens": 300_000, "scores": 300_000}
    assert header.metadata == {"after": 1}


def test_unknown_type_is_as_large_as_the_place_it_has(parse) -> None:
    table = [tensor("new", (64,), 99, 0), tensor("known", (8,), 0, 4096)]
    assert parse(gguf([], table, data=4096 + 32)).sizes() == [4096, 32]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "ends in the middle of its header"),
        (b"GGU", "ends in the middle of its header"),
        (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
        (gguf([], version=4), "GGUF version 4, newer than what can be read here (versions 2 and 3)"),
        (gguf([], version=1), "GGUF version 1, which is no longer in use"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims 1,152,921,504,606,846,976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "claims 1,099,511,627,776 metadata keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 50), "string of 1,125,899,906,842,624 bytes"),
        (gguf([pair("a", 77, b"")]), "gives a a value of type 77"),
        (gguf([pair("a", 9, struct.pack("<IQ", 4, 1 << 60))]), "items of a, which no file has"),
        (gguf([pair("a", 9, struct.pack("<IQ", 9, 1) * 9)]), "nests the arrays of a too deeply"),
        (gguf([], [tensor("t", (2,) * 5, 0, 0)]), "5 dimensions"),
        (gguf([], [tensor("t", (1 << 40, 1 << 40), 0, 0)]), "a size that no memory has"),
        (gguf([], [tensor("t", (1024,), 0, 0)], data=100), "ends before its tensor t"),
        (gguf([number("general.alignment", 0)]), "an alignment of 0"),
        (gguf([pair("general.alignment", 8, string("x"))]), "an alignment of 'x'"),
        (whole()[:200], "ends in the middle of its header"),
        (whole()[:-1], "fetch it again"),
    ],
)
def test_what_is_wrong_is_one_sentence(parse, raw: bytes, why: str) -> None:
    with pytest.raises(GgufError) as caught:
        parse(raw)
    assert str(caught.value).startswith("model.gguf: ")
    assert why in str(caught.value)


def test_names_in_messages_are_cut_and_printable(parse) -> None:
    with pytest.raises(GgufError) as caught:
        parse(gguf([pair("\x1b[31m" + "k" * 5000, 77, b"")]))
    assert len(str(caught.value)) < 200 and "\x1b" not in str(caught.value)


def test_header_that_never_ends_is_given_up(parse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "_MOST_HEADER", 1000)
    monkeypatch.setattr(gguf_header, "_CHUNK", 100)
    with pytest.raises(GgufError, match="has an endless header"):
        parse(gguf([pair(f"key{i}", 8, string("v" * 100)) for i in range(50)]))


@given(st.binary(max_size=400))
def test_random_bytes_are_a_gguf_error(raw: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        for head in (b"", b"GGUF\x03\x00\x00\x00"):
            Path(file.name).write_bytes(head + raw)
            with contextlib.suppress(GgufError):
                read(Path(file.name))


@given(st.data())
def test_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray(whole())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        Path(file.name).write_bytes(raw)
        with contextlib.suppress(GgufError):
            header = read(Path(file.name))
            assert header.weights_bytes >= 0
            as_config(header)


def test_metadata_becomes_a_configuration(parse) -> None:
    config = as_config(parse(whole()))
    assert config == {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "vocab_size": 32,
        "tie_word_embeddings": True,
    }


def test_vocabulary_may_be_told_by_the_embedding(parse) -> None:
    table = [tensor("token_embd.weight", (256, 999), 0, 0), tensor("output.weight", (256, 999), 0, 0)]
    config = as_config(parse(gguf(llama_pairs(), table, data=256 * 999 * 4)))
    assert config["vocab_size"] == 999
    assert config["tie_word_embeddings"] is False


def test_latent_attention_of_a_gguf(parse) -> None:
    more = {"attention.kv_lora_rank": 512, "attention.key_length": 192, "attention.value_length": 128}
    config = as_config(parse(gguf(llama_pairs("deepseek2", **more, **{"rope.dimension_count": 64}))))
    assert config["model_type"] == "deepseek_v2"
    assert (config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]) == (512, 64, 128)
    assert config["v_head_dim"] == 128


def test_heads_given_per_layer_are_bounded_by_their_largest(parse) -> None:
    heads = pair("llama.attention.head_count_kv", 9, struct.pack("<IQ", 4, 3) + struct.pack("<3I", 0, 4, 8))
    assert as_config(parse(gguf([*llama_pairs(), heads])))["num_key_value_heads"] == 8


def test_file_without_an_architecture_is_refused_by_the_field(parse) -> None:
    with pytest.raises(GgufError, match=r"general\.architecture is missing"):
        as_config(parse(gguf([])))
