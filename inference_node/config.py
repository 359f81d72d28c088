"""What the node derives from its configuration: names, bind checks, command-line flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from router_node.discovery.address import is_loopback
from shared.config.schema import Config, ConfigError, InferenceConfig


def model_name(config: InferenceConfig) -> str:
    """The name clients ask for: ``served_model_name``, else the last part of the folder or hub id, else the engine."""
    if config.served_model_name:
        return config.served_model_name
    path = config.model.split("@", 1)[0].rstrip("/")
    name = PurePath(path).name
    return name.removesuffix(".gguf") or config.engine


def model_names(config: InferenceConfig) -> tuple[str, ...]:
    """All names of the model, its own first."""
    name = model_name(config)
    return (name, *(alias for alias in dict.fromkeys(config.aliases) if alias != name))


def check_bind(config: Config) -> None:
    """Refuse a bind beyond loopback that any stranger could use. Raises ConfigError."""
    if is_loopback(config.inference.host) or config.server.cluster_token or config.server.insecure:
        return
    raise ConfigError(
        f"inference.host: {config.inference.host} is reachable from other machines, so the node needs "
        "server.cluster_token (the same on routers and nodes); set it, bind 127.0.0.1, or pass --insecure"
    )


def parser() -> argparse.ArgumentParser:
    """The flags of ``laya-node``."""
    p = argparse.ArgumentParser(prog="laya-node", description="Serve one model to Laya routers.")
    p.add_argument("--config", metavar="FILE", help="YAML configuration; flags and LAYA_* variables go over it")
    p.add_argument("--engine", help="auto, vllm, llama_cpp or sim")
    p.add_argument("--model", help="folder, GGUF file, or hub id with an optional @revision")
    p.add_argument("--served-model-name", help="name that clients ask for")
    p.add_argument("--host", help="address to bind (127.0.0.1)")
    p.add_argument("--port", type=int, help="port to bind; 0 takes any free one")
    p.add_argument("--advertise", metavar="HOST:PORT", help="address that routers dial")
    p.add_argument("--redis", metavar="URL", help="store to register in")
    p.add_argument("--cluster", help="namespace of this cluster in the store")
    p.add_argument("--node-id", help="stable identity of this node")
    p.add_argument("--max-seq-len", type=int, help="longest context, in tokens")
    p.add_argument("--max-num-seqs", type=int, help="sequences that run at once")
    p.add_argument("--quantization", help="how the weights are quantized, where the files do not say")
    p.add_argument("--kv-cache-memory-bytes", type=int, help="bytes for the KV cache")
    p.add_argument("--cpu-threads", metavar="CORES", help='cores of this node, as "0-3,6"')
    p.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    p.add_argument("--log-format", choices=("text", "json"))
    p.add_argument("--insecure", action="store_true", default=None, help="allow a bind beyond loopback without a token")
    p.add_argument("--ready-fd", type=int, metavar="N", help="write one JSON line to this descriptor when serving")
    return p


_KEYS = {
    "engine": "inference.engine",
    "model": "inference.model",
    "served_model_name": "inference.served_model_name",
    "host": "inference.host",
    "port": "inference.port",
    "advertise": "inference.advertise",
    "redis": "server.redis",
    "cluster": "server.cluster",
    "node_id": "inference.node_id",
    "max_seq_len": "inference.max_seq_len",
    "max_num_seqs": "inference.max_num_seqs",
    "quantization": "inference.quantization",
    "kv_cache_memory_bytes": "inference.kv_cache_memory_bytes",
    "cpu_threads": "inference.cpu_threads",
    "log_level": "server.log_level",
    "log_format": "server.log_format",
    "insecure": "server.insecure",
}


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The flags, and those among them that override configuration keys."""
    args = parser().parse_args(argv)
    return args, {key: getattr(args, flag) for flag, key in _KEYS.items()}
