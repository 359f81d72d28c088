"""The section ``tracing`` of the configuration."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.config.checks import need


class TracingConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Spans of requests, told to an OpenTelemetry collector by OTLP. An empty endpoint means none."""

    endpoint: str = ""  # http://HOST:4318 (or 4317 with grpc) of a collector, https:// with TLS
    protocol: Literal["http", "grpc"] = "http"  # OTLP over HTTP with protobuf, or over gRPC
    headers_file: str = ""  # file of "name: value" lines sent with every export, for a collector that wants a key
    ca_file: str = ""  # PEM, verifies an https endpoint; empty takes the system's
    sample_ratio: float = 0.01  # share of the traces that begin here which are sampled
    parent_based: bool = True  # a caller's traceparent decides for its own request; off: sample_ratio does
    service_name: str = ""  # empty takes laya-router and laya-node
    queue_size: int = 4096  # spans waiting to be sent; more are dropped and counted
    interval: float = 1.0  # how often they are sent
    timeout: float = 5.0  # for one batch, further tries included

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        scheme, _, rest = self.endpoint.partition("://")
        ok = not self.endpoint or (scheme in ("http", "https") and bool(rest.strip("/")))
        need(ok, "tracing.endpoint", f"must be http://HOST:PORT or https://HOST:PORT, not {self.endpoint!r}")
        need(0 <= self.sample_ratio <= 1, "tracing.sample_ratio", f"must be 0 to 1, not {self.sample_ratio}")
        need(64 <= self.queue_size <= 1_000_000, "tracing.queue_size", "must be 64 to 1000000 spans")
        need(0.05 <= self.interval <= 60, "tracing.interval", "must be 0.05 to 60 seconds")
        need(0.1 <= self.timeout <= 60, "tracing.timeout", "must be 0.1 to 60 seconds")
