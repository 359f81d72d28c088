"""How many KV cells a GGUF file gets, and what is refused with the sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines.llama_cpp_args import Settings
from inference_node.engines.llama_cpp_memory import CELLS, Planner, choose, settle
from inference_node.memory.shapes import KvLayer, Shape, Weights
from inference_node.memory.units import GIB, MIB
from shared.config.schema import ConfigError, InferenceConfig
from tests.unit.node.memory.files import gguf, llama_pairs

SETTINGS = Settings(n_threads=1, n_threads_batch=1, n_batch=256, n_ubatch=256)
SHAPE = Shape(
    name="m",
    family="llama",
    layers=4,
    hidden=256,
    vocab=1000,
    max_context=8192,
    linear_params=1,
    other_params=1,
    kv=(KvLayer(4, "full", 2, 64),),
    widest=1024,
)
CELL = 4 * 2 * 64 * 2  # bytes of a cell in f16


def planner(memory: int = 8 * GIB, shape: Shape = SHAPE, gpu: bool = False, **more: Any) -> Planner:
    return Planner(shape, Weights(100 * MIB), replace(SETTINGS, **more), memory, gpu)


def room(found: Planner, **config: Any) -> Any:
    return choose(found, InferenceConfig(**config))


def test_a_cell_holds_keys_and_values_of_every_layer() -> None:
    assert planner().cache(1000, 1) == 1000 * CELL
    assert planner(type_k="q8_0", type_v="q8_0").cache(1024, 1) == 1024 * CELL * 34 // 64
    assert planner(type_k="q8_0").cache(1024, 1) == (1024 * CELL * 34 // 64 + 1024 * CELL) // 2


def test_windows_and_states_have_their_own() -> None:
    shape = replace(SHAPE, kv=(KvLayer(1, "full", 2, 64), KvLayer(3, "sliding", 2, 64, window=512)))
    held = -(-(512 * 2 + 256) // CELLS) * CELLS
    assert planner(shape=shape).cache(8192, 2) == (8192 + 3 * held) * CELL // 4
    assert planner(shape=shape, swa_full=True).cache(8192, 2) == 8192 * CELL
    states = replace(SHAPE, kv=(KvLayer(4, "state", conv=10, recurrent=90),))
    assert planner(shape=states).cache(8192, 3) == 4 * 100 * 4 * 3


def test_what_is_left_open_leaves_room_for_a_few_long_sequences() -> None:
    got = room(planner())
    assert (got.max_seq_len, got.max_num_seqs) == (4096, 16)
    assert 4 * 4096 <= got.cells <= 16 * 4096
    assert got.total <= 8 * GIB


def test_both_asked_for_must_fit_at_once() -> None:
    assert room(planner(), max_seq_len=1000, max_num_seqs=3).cells == 3072
    with pytest.raises(ConfigError, match="do not fit") as refused:
        room(planner(memory=600 * MIB), max_seq_len=8192, max_num_seqs=64)
    assert "weights" in str(refused.value) and "there is" in str(refused.value)


def test_a_small_machine_gets_a_short_context_and_a_long_one_asked_for_is_refused() -> None:
    small = planner(memory=planner().room(1024, 1024, 16).total)
    got = room(small)
    assert got.cells == got.max_seq_len == 1024
    with pytest.raises(ConfigError, match="do not fit"):
        room(small, max_seq_len=8192)


def test_a_given_cache_is_kept_to() -> None:
    got = room(planner(), kv_cache_memory_bytes=2048 * CELL + 5)
    assert (got.cells, got.cache) == (2048, 2048 * CELL)
    assert room(planner(n_ctx=1000)).cells == 1024
    with pytest.raises(ConfigError, match="less than one sequence of 4,096"):
        room(planner(n_ctx=1000), max_seq_len=4096)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_seq_len": 9000}, "9000 is more than the 8192"),
        ({"max_num_seqs": 300}, "256 sequences at most"),
    ],
)
def test_what_the_model_or_llama_cpp_cannot_is_refused(config: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        room(planner(), **config)


def test_a_batch_holds_a_token_of_each_sequence() -> None:
    with pytest.raises(ConfigError, match="raise inference.engine_args.n_batch"):
        room(planner(n_batch=8, n_ubatch=8), max_num_seqs=9)


@given(st.integers(500, 1 << 14), st.integers(0, 8192), st.integers(0, 64), st.integers(0, 1 << 30), st.booleans())
def test_what_is_chosen_fits_or_is_refused(memory: int, context: int, sequences: int, pool: int, gpu: bool) -> None:
    found = planner(memory=memory * MIB, gpu=gpu)
    config = InferenceConfig(max_seq_len=context, max_num_seqs=sequences, kv_cache_memory_bytes=pool)
    try:
        got = choose(found, config)
    except ConfigError:
        return
    assert got.total <= memory * MIB
    assert got.cells % CELLS == 0 and got.cells >= got.max_seq_len >= 1
    assert not context or got.max_seq_len == context
    assert not pool or got.cache <= max(pool, found.cache(CELLS, got.max_num_seqs))


def test_a_file_is_settled_from_its_header(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(llama_pairs(vocab_size=1000)))
    for model in (file, tmp_path):
        path, got = settle(InferenceConfig(model=str(model), max_seq_len=512, max_num_seqs=2), SETTINGS, False)
        assert (path, got.cells) == (str(file), 1024)


@pytest.mark.parametrize("content", [b"", b"GGUF\3\0\0\0", b"nothing of the kind"])
def test_a_broken_file_is_a_configuration_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"inference\.model: m\.gguf"):
        settle(InferenceConfig(model=str(file)), SETTINGS, False)
