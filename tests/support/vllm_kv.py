"""Starts vLLM on a model folder and prints what KV cache it made: ``python -m tests.support.vllm_kv DIR JSON_ARGS``.

A process of its own, so that the engine's threads and environment do not outlive the question. The weights are random
and no tokenizer is needed: only the shape of the model matters.
"""

from __future__ import annotations

import json
import os
import sys


def main(model: str, arguments: str) -> None:
    """Start as the node does on a CPU, print the KV cache's sizes as one line of JSON."""
    os.environ.update(
        TORCH_COMPILE_DISABLE="1",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
    )
    from vllm import LLM

    engine = LLM(
        model,
        enforce_eager=True,
        load_format="dummy",
        skip_tokenizer_init=True,
        distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor",
        **json.loads(arguments),
    )
    config = engine.llm_engine.vllm_config
    cache, scheduler = config.cache_config, config.scheduler_config
    print(
        json.dumps(
            {
                "tokens": cache.kv_cache_size_tokens,
                "blocks": cache.num_gpu_blocks,
                "block_tokens": cache.block_size,
                "step_tokens": scheduler.max_num_batched_tokens,
                "prefix_caching": cache.enable_prefix_caching,
                "model_len": config.model_config.max_model_len,
            }
        ),
        flush=True,
    )
    os._exit(0)  # nothing was asked of the engine, so nothing has to be put away


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
