"""Configuration: one YAML file, then ``LAYA_SECTION__KEY`` from the environment, then flags."""

from shared.config.loader import load, redact_url, to_yaml
from shared.config.schema import (
    Config,
    ConfigError,
    InferenceConfig,
    RouterConfig,
    ServerConfig,
    SimConfig,
    TlsConfig,
)

__all__ = [
    "Config",
    "ConfigError",
    "InferenceConfig",
    "RouterConfig",
    "ServerConfig",
    "SimConfig",
    "TlsConfig",
    "load",
    "redact_url",
    "to_yaml",
]
