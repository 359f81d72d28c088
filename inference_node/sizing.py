"""Memory, planned before the engine starts: what the configuration leaves open is filled in for the device there is.

What cannot fit is refused with the sums. Nothing here imports an engine; the model's small files are read, and the
device is asked, in a few milliseconds. Where a model, a device or a setting is beyond these sums, the node says so and
the engine's own careful defaults hold.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from inference_node.engines import vllm_args, vllm_env
from inference_node.memory import device, hub
from inference_node.memory.checkpoint import Checkpoint, CheckpointError, find
from inference_node.memory.choice import Choice, Wanted, choose
from inference_node.memory.device import Device
from inference_node.memory.plan import COMFORT, Options, Planner, gpu_step
from inference_node.memory.quant import PlanError
from inference_node.memory.shapes import ShapeError
from shared import logging as logs
from shared.config.schema import ConfigError, InferenceConfig

# Arguments of the engine that take or give memory in ways that are not summed here.
_BEYOND = (
    "speculative_config",
    "cpu_offload_gb",
    "kv_offloading_size",
    "enable_lora",
    "num_gpu_blocks_override",
    "kv_transfer_config",
    "hf_overrides",
    "decode_context_parallel_size",
)

log = logs.get("memory")


@dataclass(frozen=True, slots=True)
class Sized:
    """The configuration with what it left open filled in, as far as that could be told."""

    config: InferenceConfig
    context: int = 0  # longest sequence, where the configuration leaves it open; 0 leaves it to the engine
    choice: Choice | None = None
    why: str = ""  # why nothing was planned


def settle(config: InferenceConfig, found: Device | None = None) -> Sized:
    """Plan for vLLM and log what came of it. Raises ConfigError, with the sums, for what cannot fit.

    ``found`` stands in for the device of this machine.
    """
    sized = fit(config, found)
    if sized.choice is None:
        logs.event(log, logging.WARNING, "memory_not_planned", why=sized.why)
        return sized
    plan = sized.choice.plan
    logs.event(
        log,
        logging.WARNING if sized.choice.tight else logging.INFO,
        "memory_tight" if sized.choice.tight else "memory_planned",
        device=plan.options.device,
        memory=plan.memory,
        total=plan.total,
        weights=plan.weights,
        kv_cache=plan.pool * plan.pools,
        max_seq_len=plan.context,
        max_num_seqs=plan.sequences,
    )
    return sized


def fit(config: InferenceConfig, found: Device | None = None) -> Sized:
    """Plan without a word. Raises ConfigError for what cannot fit, and for a model whose files are broken."""
    try:
        planner = _planner(config, found)
    except (_Beyond, ShapeError, PlanError) as e:
        return Sized(config, why=str(e))
    wanted = Wanted(
        context=config.max_seq_len,
        sequences=config.max_num_seqs,
        pool=config.kv_cache_memory_bytes,
        share=config.gpu_memory_utilization if planner.options.device == "gpu" else COMFORT,
    )
    choice = choose(planner, wanted)
    if choice.refusal:
        raise ConfigError(_refusal(planner, choice, wanted))
    plan = choice.plan
    values: dict[str, Any] = {"max_num_seqs": plan.sequences, "kv_cache_memory_bytes": plan.pool}
    if plan.shape.multimodal and plan.options.device == "gpu":
        values = {}  # its encoder's share is found only by a trial run, which vLLM leaves out for a given pool
    if not plan.layout.groups:
        values.pop("kv_cache_memory_bytes", None)
    return Sized(msgspec.structs.replace(config, **values), 0 if config.max_seq_len else plan.context, choice)


class _Beyond(Exception):
    """These sums do not cover it: one sentence."""


def _planner(config: InferenceConfig, found: Device | None) -> Planner:
    arguments = {key.replace("-", "_").lstrip("_"): value for key, value in config.engine_args.items()}
    for name in _BEYOND:
        if arguments.get(name):
            raise _Beyond(f"inference.engine_args.{name} changes what memory is taken in ways that are not summed")
    options = _options(config, arguments)
    found = found or device.find(cpu=options.device == "cpu", ranks=options.ranks)
    if found is None:
        raise _Beyond("this machine does not tell how much memory there is")
    checkpoint = _checkpoint(config)
    if options.device == "gpu" and not options.step_tokens:
        options = replace(options, step_tokens=gpu_step(found.total))
    if options.device == "cpu" and any(layer.kind == "latent" for layer in checkpoint.shape.kv):
        options = replace(options, amx=device.has_amx())
    return Planner(checkpoint.shape, checkpoint.weights, options, found.free)


def _checkpoint(config: InferenceConfig) -> Checkpoint:
    """The model's shape and weights. Raises ConfigError for broken files, _Beyond for what cannot be looked at."""
    model, revision = vllm_args.split_model(config)
    path = Path(model)
    if path.is_dir() and not (path / "config.json").exists():
        raise _Beyond(f"{model} has no config.json")
    try:
        return find(model, revision, offline=config.offline)
    except CheckpointError as e:
        if path.exists() or hub.cached(model, revision):
            raise ConfigError(f"inference.model: {e}") from None
        raise _Beyond(str(e)) from None


def _options(config: InferenceConfig, arguments: dict[str, Any]) -> Options:
    def number(name: str, default: int) -> int:
        value = arguments.get(name, default)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

    quantization = config.quantization
    return Options(
        device="cpu" if vllm_env.is_cpu_build() else "gpu",
        quantization="" if quantization.lower() in vllm_args.IN_CHECKPOINT else quantization,
        kv_dtype=str(arguments.get("kv_cache_dtype") or "auto"),
        dtype="float32" if config.dtype in ("float32", "float") else "auto",
        block_tokens=number("block_size", 0),
        step_tokens=number("max_num_batched_tokens", 0),
        tensor_parallel=number("tensor_parallel_size", 1),
        pipeline_parallel=number("pipeline_parallel_size", 1),
        prefix_caching=arguments.get("enable_prefix_caching") is not False,
        windows=arguments.get("disable_hybrid_kv_cache_manager") is not True,
        graphs=not config.enforce_eager,
    )


def _refusal(planner: Planner, choice: Choice, wanted: Wanted) -> str:
    """One screen: the sums, and what to change."""
    from inference_node.memory import advice, screen

    plan = choice.plan
    found = advice.pools(planner, plan)
    if not wanted.pool or not found:
        found = [*advice.changes(planner, plan)[:-1], *found, advice.more_memory(plan)]
    lines = ["inference: the model does not fit in memory as configured", *screen.sums(plan, choice.refusal), ""]
    return "\n".join([*lines, *screen.ways_out(found, flags=False)])
