"""From the ``inference`` section to vLLM's own arguments.

Settings with a name of their own come first, then safe defaults, then ``engine_args``: anything else vLLM takes,
checked against vLLM's own arguments. Nothing here starts anything; what touches vLLM imports it when called.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_node.engines.vllm_env import MIB
from inference_node.limits import long_prefill_threshold
from inference_node.sampling import MAX_LOGPROBS
from shared.config.schema import ConfigError, InferenceConfig

UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
DEFAULT_CONTEXT = 4096
DEFAULT_CPU_SEQS = 16
DEFAULT_CPU_KV = 1 << 30
MIN_KV = 64 * MIB
LEAST_CONCURRENCY = 4  # sequences of full length that an automatic context leaves room for
# Prompt tokens of one step on the CPU: a step holds up every stream.
CPU_STEP_TOKENS = 256
# vLLM takes an empty list for "any host"; this name can never resolve (RFC 6761).
NO_MEDIA = ("no-remote-media.invalid",)
# What people call schemes that vLLM finds in the checkpoint itself.
IN_CHECKPOINT = ("", "none", "w8a8", "w4a16", "int8", "int4")

# Arguments that have a setting of their own.
_NAMED = {
    "model": "model",
    "served_model_name": "served_model_name",
    "revision": "revision",
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_num_seqs",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enforce_eager": "enforce_eager",
    "quantization": "quantization",
    "dtype": "dtype",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "trust_remote_code": "trust_remote_code",
    "allowed_media_domains": "allowed_media_domains",
}
_SERVER = "Laya has a server of its own; its settings are in the section `server`"
# Arguments that would break what the node promises.
_RESERVED = {
    "scheduling_policy": "it is always priority",
    "skip_tokenizer_init": "the node needs the tokenizer",
    "disable_log_stats": "the node reports from these statistics",
    "enable_log_requests": "requests are not logged",
    "tokens_only": "the node needs the whole application",
    "data_parallel_size": "run one node per replica instead, the router spreads the load",
    "enable_elastic_ep": "run one node per replica instead",
    "numa_bind": "set inference.cpu_threads, or start the node under numactl",
    "mm_tensor_ipc": "the engine core is already running when vLLM would share memory with it",
    "swap_space": "vLLM has none any more",
    "log_level": "set server.log_level",
    "logging_config": "set server.log_level and server.log_format",
    "log_config_file": "set server.log_level and server.log_format",
    "headless": _SERVER,
    "api_server_count": _SERVER,
    "middleware": _SERVER,
    "root_path": _SERVER,
    "uds": _SERVER,
    "trust_request_chat_template": "a client's template runs on this machine",
    "tool_server": "tools of the server's own are not served",
}
_RESERVED_PREFIXES = {
    "ssl_": _SERVER,
    "h11_": _SERVER,
    "uvicorn_": _SERVER,
    "allowed_origins": _SERVER,
    "allowed_methods": _SERVER,
    "allowed_headers": _SERVER,
    "allow_credentials": _SERVER,
    "api_key": _SERVER,
    "host": _SERVER,
    "port": _SERVER,
    "grpc": _SERVER,
    "dp_supervisor": _SERVER,
    "data_parallel_": "run one node per replica instead, the router spreads the load",
}
# Any of these means that the user has decided about compilation.
_COMPILATION = ("compilation_config", "optimization_level", "performance_mode")


@dataclass(frozen=True, slots=True)
class Host:
    """What there is to run on."""

    cpu: bool  # vLLM is a CPU build
    memory: int  # bytes this process may take; 0 where unknown


@dataclass(slots=True)
class Arguments:
    """Arguments for the engine and for its OpenAI application, by vLLM's own names."""

    engine: dict[str, Any]
    app: dict[str, Any] = field(default_factory=dict)


def workers(config: InferenceConfig) -> int:
    """Processes beside the engine core's that compute on the CPU; 0 when the core does it itself.

    One process fewer means less memory, and one import of vLLM less to wait for. Raises ConfigError.
    """
    ranks = _ranks(config)
    return ranks if ranks > 1 or _given(config, "distributed_executor_backend", None) is not None else 0


def _given(config: InferenceConfig, name: str, default: Any) -> Any:
    """A value of ``engine_args``, by either spelling."""
    return config.engine_args.get(name, config.engine_args.get(name.replace("_", "-"), default))


def _ranks(config: InferenceConfig) -> int:
    """Processes or devices that one copy of the model is spread over."""
    product = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = _given(config, name, 1)
        if not isinstance(value, (int, str)) or not str(value).isdigit() or int(value) < 1:
            raise ConfigError(f"inference.engine_args.{name}: must be a whole number from 1, not {value!r}")
        product *= int(value)
    return product


def is_eager(config: InferenceConfig, host: Host) -> bool:
    """Whether nothing is compiled: as configured, and on the CPU unless compilation is asked for (it takes minutes)."""
    return config.enforce_eager or (host.cpu and not any(_given(config, name, None) for name in _COMPILATION))


def split_model(config: InferenceConfig) -> tuple[str, str]:
    """Folder or hub id, and revision ("" for none).

    Raises ConfigError where two revisions are named, and for a folder that is not there or holds no model. Cheap.
    """
    model, revision = os.path.expanduser(config.model), config.revision
    if not Path(model).exists() and "@" in model:
        model, _, named = model.rpartition("@")
        if revision and named != revision:
            raise ConfigError(
                f"inference.revision: {revision} is not the revision in inference.model ({named}); name one of them"
            )
        revision = named
    if not model:
        raise ConfigError("inference.model: names no model; give a folder or a hub id")
    path = Path(model)
    if path.is_dir():
        if not any((path / name).exists() for name in ("config.json", "params.json")):
            raise ConfigError(
                f"inference.model: the folder {model} holds no config.json, so no model that vLLM can read"
            )
    elif model.startswith((".", "/")):
        raise ConfigError(f"inference.model: there is no folder {model}; give a folder that is there, or a hub id")
    return model, revision


def base(config: InferenceConfig, names: Collection[str], host: Host) -> dict[str, Any]:
    """The engine's arguments from the named settings and safe defaults; ``max_model_len`` is decided later."""
    model, revision = split_model(config)
    args: dict[str, Any] = {
        "model": model,
        "served_model_name": list(names),
        "dtype": config.dtype,
        "trust_remote_code": config.trust_remote_code,
        "allowed_media_domains": list(config.allowed_media_domains or NO_MEDIA),
        "enforce_eager": is_eager(config, host),
        "scheduling_policy": "priority",
        "enable_logging_iteration_details": True,
        "disable_log_stats": True,  # vLLM's own log lines; the node has a collector of its own
        "use_tqdm_on_load": False,
        "max_logprobs": MAX_LOGPROBS + 1,  # the chosen token beside as many alternatives as the node allows
    }
    if revision:
        args["revision"] = args["tokenizer_revision"] = revision
    if config.quantization.lower() not in IN_CHECKPOINT:
        args["quantization"] = config.quantization
    if config.max_num_seqs:
        args["max_num_seqs"] = config.max_num_seqs
    if host.cpu:
        args.update(_cpu_defaults(config, host))
    else:
        args["gpu_memory_utilization"] = config.gpu_memory_utilization
        if config.kv_cache_memory_bytes:
            args["kv_cache_memory_bytes"] = config.kv_cache_memory_bytes
    return args


def _cpu_defaults(config: InferenceConfig, host: Host) -> dict[str, Any]:
    seqs = config.max_num_seqs or DEFAULT_CPU_SEQS
    step = max(CPU_STEP_TOKENS, seqs)
    args: dict[str, Any] = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": step,
        "kv_cache_memory_bytes": config.kv_cache_memory_bytes or default_kv_bytes(host.memory),
    }
    if not workers(config):
        args["distributed_executor_backend"] = UNIPROC
    if _given(config, "enable_chunked_prefill", None) is False:
        del args["max_num_batched_tokens"]
    return args


def default_kv_bytes(memory: int) -> int:
    """KV cache in bytes where none is configured: 1 GiB, or a quarter of ``memory`` (0: unknown) where that is less.

    Raises ConfigError when even the least cache would be more than half of the memory.
    """
    if not memory:
        return DEFAULT_CPU_KV
    size = max(min(DEFAULT_CPU_KV, memory // 4), MIN_KV)
    if size > memory // 2:
        raise ConfigError(
            f"inference.kv_cache_memory_bytes: {memory // MIB} MiB of memory are free, too little for a KV cache of "
            f"{MIN_KV // MIB} MiB beside the model; free some memory or use a smaller model"
        )
    return size


def sort_extra(extra: Mapping[str, Any], engine: Collection[str], app: Collection[str]) -> Arguments:
    """``engine_args`` sorted into the engine's and the application's.

    ``engine`` and ``app`` are vLLM's own argument names. Raises ConfigError for a key that vLLM does not have, with the
    nearest it has; for one that has a setting of its own, naming that; and for one that is not the user's to set.
    """
    out = Arguments({})
    for key, value in extra.items():
        name = key.replace("-", "_").lstrip("_")
        where = f"inference.engine_args.{key}"
        if name in _NAMED:
            raise ConfigError(f"{where}: has a setting of its own; set inference.{_NAMED[name]} instead")
        reason = _reserved(name)
        if reason and name in (*engine, *app, *_RESERVED):
            raise ConfigError(f"{where}: cannot be set: {reason}")
        if name in engine:
            out.engine[name] = value
        elif name in app:
            out.app[name] = value
        else:
            raise ConfigError(f"{where}: vLLM has no such argument{_nearest(name, {*engine, *app})}")
    _check_events(out.engine.get("kv_events_config"))
    return out


def _reserved(name: str) -> str:
    if name in _RESERVED:
        return _RESERVED[name]
    return next((why for prefix, why in _RESERVED_PREFIXES.items() if name.startswith(prefix)), "")


def _nearest(name: str, known: Collection[str]) -> str:
    free = [k for k in known if not _reserved(k) and not k.startswith("_")]
    close = difflib.get_close_matches(name, free, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else "; see the arguments of `vllm serve`"


def _check_events(value: Any) -> None:
    """KV events are for this machine alone: vLLM's default is a TCP port on every address."""
    if not isinstance(value, Mapping) or not value.get("enable_kv_cache_events"):
        return
    for key, default in (("endpoint", "tcp://*:5557"), ("replay_endpoint", None)):
        address = value.get(key, default)
        if address is not None and not str(address).startswith("ipc://"):
            raise ConfigError(
                f"inference.engine_args.kv_events_config.{key}: must be an ipc:// path, so that no other machine "
                f"reads what is generated here, not {address}"
            )


def typed(values: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """Values converted to the types that the dataclass ``owner`` declares, a mapping to a configuration object.

    Raises ConfigError naming the argument and what is wrong with it.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    hints: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(owner)}
    out: dict[str, Any] = {}
    for name, value in values.items():
        out[name] = value
        if isinstance(hints[name], str):
            continue  # names a type that exists for type checkers only; vLLM checks the value itself
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hints[name])
        except (PydanticUserError, TypeError, NameError):
            continue  # and so it does with types that have no schema
        try:
            out[name] = adapter.validate_python(value)
        except ValidationError as e:
            first = e.errors()[0]
            raise ConfigError(f"inference.engine_args.{name}: {first['msg']}, not {value!r}") from None
    return out


def field_names(owner: type) -> set[str]:
    """Names of a dataclass's public fields."""
    return {f.name for f in dataclasses.fields(owner) if not f.name.startswith("_")}


def choose_context(asked: int, own: int, kv_tokens: int, model: str, planned: int = 0) -> int:
    """Longest sequence, in tokens.

    ``asked`` where it is given; above the model's ``own`` it is refused with both numbers (ConfigError). Else what was
    ``planned`` for the device, as far as the model goes. Where nothing was, the model's own, cut so that the KV cache
    (``kv_tokens``, 0 where unknown) holds several sequences of that length, but not below the smallest of 4096, the
    model's own, and what the cache holds.
    """
    if asked > own:
        raise ConfigError(
            f"inference.max_seq_len: {asked} is more than the {own} tokens that {model} supports; "
            f"set {own} or less, or 0 to let the node choose"
        )
    if asked:
        return asked
    if planned:
        return min(own, planned)
    if not kv_tokens:
        return min(own, DEFAULT_CONTEXT)
    return min(own, max(kv_tokens // LEAST_CONCURRENCY, min(DEFAULT_CONTEXT, kv_tokens)))


def lane_threshold(config: InferenceConfig, step_tokens: int, context: int) -> int | None:
    """``long_prefill_token_threshold`` to match the lanes of admission; None where the user has set his own."""
    if any(name.replace("-", "_").startswith("long_prefill_token_threshold") for name in config.engine_args):
        return None
    return min(long_prefill_threshold(config.long_prompt_tokens, step_tokens), context)


def lookahead_tokens(speculative: int, drafter: int) -> int:
    """KV slots that a sequence may take beside its own tokens with ``speculative`` tokens guessed per step.

    Two steps may be under way at once, each with its guesses and the token that follows them; beyond those the
    ``drafter`` writes so many positions of its own.
    """
    return 2 * (speculative + 1) + drafter if speculative else 0


def kv_tokens(kv_bytes: int, bytes_per_token: int, block: int) -> int:
    """Tokens that a KV cache of so many bytes holds in whole blocks, one of which vLLM keeps for itself."""
    if kv_bytes <= 0 or bytes_per_token <= 0:
        return 0
    return max(kv_bytes // (bytes_per_token * block) - 1, 0) * block
