"""Loads a model in vLLM, asks one question, prints the answer as JSON: ``python -m tests.support.ask_vllm DIR TEXT``.

A process of its own, so that the engine's threads and environment do not outlive the question.
"""

from __future__ import annotations

import json
import os
import sys


def main(model: str, question: str) -> None:
    """Answer greedily through the chat template, with the settings that start fastest."""
    os.environ.update(
        TORCH_COMPILE_DISABLE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1"
    )
    from vllm import LLM, SamplingParams

    # By its full name the executor stays in the engine's own process: one process, and its imports, fewer.
    executor = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    engine = LLM(
        model,
        enforce_eager=True,
        max_model_len=512,
        kv_cache_memory_bytes=64 << 20,
        seed=0,
        distributed_executor_backend=executor,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    answer = engine.chat([{"role": "user", "content": question}], sampling, use_tqdm=False)[0].outputs[0]
    quantization = engine.llm_engine.vllm_config.model_config.quantization
    print(json.dumps({"text": answer.text, "tokens": len(answer.token_ids), "quantization": quantization}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
