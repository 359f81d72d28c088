"""The demo model's GGUF file in llama.cpp, for tests that ask llama.cpp itself."""

from __future__ import annotations

import pytest

from inference_node.engines.llama_cpp_args import Settings
from inference_node.engines.llama_cpp_native import Library, Model
from inference_node.quantize import demo

SETTINGS = Settings(n_threads=1, n_threads_batch=1, n_batch=32, n_ubatch=32)


def load() -> Model:
    """The model; skips the test where llama.cpp is not installed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; make setup-llama-cpp")
    return Model(Library.load(), str(demo.gguf()), SETTINGS, lambda: True)
