"""llama.cpp's C interface, asked with a small real model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inference_node.engines.llama_cpp_native import NO_ROOM, Context, Library, Model, NativeError
from tests.support import llama


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    found = llama.load()
    yield found
    found.close()
    found.close()


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    found = Context(model, llama.SETTINGS, 256, 3)
    yield found
    found.close()
    found.close()


def logits(context: Context, sequence: int, start: int, tokens: list[int]) -> list[float]:
    context.begin()
    row = context.add(sequence, start, tokens, True)
    assert context.decode() == 0
    return list(map(float, context.logits(row)))


def test_the_file_says_what_it_is(model: Model) -> None:
    assert model.generates and model.shares_prompts
    assert model.context_length == 8192 and model.quantization == "Q4_1"
    assert "<|im_start|>" in model.chat_template
    assert model.metadata("general.architecture") == "llama" and model.metadata("no.such.key") == ""
    assert model.special("eos") == "<|im_end|>"


def test_text_goes_to_tokens_and_back(model: Model) -> None:
    text = "Héllo, 世界 🙂\n" * 50
    tokens = model.tokenize(text, whole=True)
    assert b"".join(model.piece(t, False) for t in tokens).decode() == text
    (mark,) = model.tokenize("<|im_end|>", whole=False)
    assert mark in model.ends and model.piece(mark, False) == b"" and model.piece(mark, True) == b"<|im_end|>"
    with pytest.raises(UnicodeEncodeError):
        model.tokenize("\ud800", whole=True)


def test_sequences_side_by_side_are_as_if_alone(model: Model, context: Context) -> None:
    one, two = model.tokenize("The capital of France is", whole=True), model.tokenize("One, two, three,", whole=True)
    alone = [logits(context, 0, 0, one), logits(context, 1, 0, two)]
    context.forget(0)
    context.forget(1)
    context.begin()
    rows = [context.add(2, 0, one, True), context.add(1, 0, two, True)]
    assert context.decode() == 0
    for row, wanted in zip(rows, alone, strict=True):
        together = context.logits(row)
        assert int(np.argmax(together)) == int(np.argmax(wanted))
        assert np.allclose(together, wanted, atol=0.5)


def test_a_shared_prompt_goes_on_as_its_own(model: Model, context: Context) -> None:
    tokens = model.tokenize("The capital of France is", whole=True)
    wanted = logits(context, 0, 0, tokens)
    context.share(0, 1, len(tokens) - 1)
    again = logits(context, 1, len(tokens) - 1, tokens[-1:])
    assert np.allclose(again, wanted, atol=0.5) and int(np.argmax(again)) == int(np.argmax(wanted))


def test_a_full_cache_says_so_and_what_is_forgotten_is_free(model: Model, context: Context) -> None:
    token = model.tokenize("a", whole=False)
    for start in range(0, 256, 32):
        logits(context, 0, start, token * 32)
    context.begin()
    context.add(1, 0, token, True)
    assert context.decode() == NO_ROOM
    context.forget(0)
    assert len(logits(context, 1, 0, token)) == model.tokens


def test_a_file_that_is_none_is_one_sentence(model: Model, tmp_path: Path) -> None:
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"GGUF nothing")
    with pytest.raises(NativeError, match="llama.cpp cannot load it: ."):
        Model(model.library, str(broken), llama.SETTINGS, lambda: True)


def test_loading_ends_when_it_is_told_to(model: Model) -> None:
    from inference_node.quantize import demo

    with pytest.raises(NativeError):
        Model(model.library, str(demo.gguf()), llama.SETTINGS, lambda: False)


def test_a_library_gives_its_log_back(model: Model) -> None:
    Library.load().close()


def test_a_library_dropped_without_a_word_leaves_a_log_that_works(model: Model) -> None:
    dropped = """
import gc
from inference_node.engines.llama_cpp_native import Library
Library.load()
gc.collect()
filled = [b"\\xff" * size for size in range(16, 400, 8) for _ in range(2000)]  # what was freed now holds this
import llama_cpp
print(llama_cpp.llama_model_load_from_file(b"/no/such.gguf", llama_cpp.llama_model_default_params()))
"""
    found = subprocess.run([sys.executable, "-c", dropped], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "None\n"), found.stderr
