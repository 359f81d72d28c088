"""Well-known models by name."""

from __future__ import annotations

import pytest

from inference_node.memory.known import KNOWN, known, nearest

# Parameters as published.
PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_published(name: str) -> None:
    shape = known(name)
    assert shape is not None
    assert shape.params == pytest.approx(PARAMETERS[name], rel=1e-4)


def test_every_shape_is_known_by_its_family() -> None:
    for name in KNOWN:
        shape = known(name)
        assert shape is not None and shape.notes == ()


@pytest.mark.parametrize(
    "name",
    ["Llama-2-7B", "meta-llama/Llama-2-7b-hf", "llama_2_7b", "meta-llama/Llama-2-7b-chat-hf@main", "LLAMA-2-7B"],
)
def test_names_are_found_as_people_write_them(name: str) -> None:
    shape = known(name)
    assert shape is not None and shape.name == "llama-2-7b"


def test_other_names_of_the_same_shape() -> None:
    one, other = known("deepseek-ai/DeepSeek-R1"), known("DeepSeek-V3")
    assert one is not None and other is not None and one.params == other.params


def test_unknown_name_is_none_and_its_neighbours_are_offered() -> None:
    assert known("llama-2-8b") is None
    assert "llama-2-7b" in nearest("llama-2-8b")
    assert nearest("zzzzzz") == []


def test_llama_two_takes_half_a_mib_a_token() -> None:
    shape = known("Llama-2-7B")
    assert shape is not None and shape.elements_per_token * 2 == 524_288
