"""The settings of the configuration file as JSON schema, taken from ``shared/config/schema.py``."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.config import schema as config
from shared.config.reference import comments
from shared.config.tracing import TracingConfig

# What the chart sets itself, from keys of its own.
_SERVER = {"host", "port", "log_level", "log_format", "access_log", "cluster", "cluster_token", "redis", "keys_file"}
_OWN = {
    "server": _SERVER | {"insecure", "drain_timeout", "drain_delay", "tls", "consul"},
    "router": {"admin_host", "admin_port", "node_tls", "dns"},
    "inference": {"host", "port", "advertise", "node_id", "engine", "model", "revision", "engine_args"},
    "tracing": {"headers_file"},
}
_KINDS: dict[str, type[msgspec.Struct]] = {
    "server": config.ServerConfig,
    "router": config.RouterConfig,
    "inference": config.InferenceConfig,
    "tracing": TracingConfig,
}


def definitions() -> dict[str, Any]:
    """One definition for each section, without the keys that the chart sets."""
    return {name: _section(kind, _OWN[name], name) for name, kind in _KINDS.items()}


def _section(kind: type[msgspec.Struct], without: set[str], name: str) -> dict[str, Any]:
    about = comments(kind)
    keys = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in without:
            continue
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            keys[field.encode_name] = _section(field.type, set(), f"{name}.{field.encode_name}")
        else:
            text = about.get(field.encode_name, "") or field.encode_name
            keys[field.encode_name] = {**msgspec.json.schema(field.type), "description": text}
    return {
        "type": "object",
        "description": f"Settings of `{name}` in the configuration file.",
        "additionalProperties": False,
        "properties": keys,
    }
