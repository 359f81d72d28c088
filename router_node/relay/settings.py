"""What the relay and the gateway read of the configuration, in one frozen object. Times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from shared import headers
from shared.config.migration import MigrationConfig
from shared.config.schema import Config, ConfigError
from shared.cpus import usable_cpus

# Metadata that no setting may let through: credentials stop at the router, framing is a connection's own.
_NEVER = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"set-cookie",
        b"x-api-key",
        b"api-key",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"host",
        b"content-length",
        b"trailer",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationSettings:
    """Bounds of streams that go on elsewhere, as ``router.migration`` has them."""

    max_request_bytes: int = 256 << 10
    max_tokens: int = 32_768
    memory: int = 256 << 20
    attempts: int = 3
    max_stall: float = 30.0
    max_prefill_tokens: int = 262_144
    share: float = 0.2
    burst: int = 2000
    poison_seconds: float = 300.0

    @classmethod
    def from_config(cls, config: MigrationConfig) -> MigrationSettings | None:
        """None where it is off."""
        if not config.enabled:
            return None
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Limits and names of the router's data plane."""

    cluster_token: bytes = b""
    max_n: int = 16
    max_max_tokens: int = 131_072
    max_scan_bytes: int = 256 << 10
    max_body_bytes: int = 32 << 20
    queue_timeout: float = 10.0  # longest wait for a node with room
    body_timeout: float = 60.0  # longest wait for the first message of a request that must be read
    first_token: float = 0.0  # longest wait for the first token of a streamed answer; 0: no limit, as for the next two
    between_tokens: float = 0.0  # longest wait for each further one
    total: float = 0.0  # longest time for a whole request
    max_attempts: int = 3  # nodes tried for one request, the first included
    retry_backoff: float = 0.025  # before the second retry; doubled before each further one
    max_retry_backoff: float = 1.0
    forward_metadata: frozenset[bytes] = frozenset()
    cors_origins: frozenset[bytes] = frozenset()
    access_log: bool = True
    busy_poll: float = 0.0  # how long to stay awake for the next request; 0: not at all
    migration: MigrationSettings | None = None

    @classmethod
    def from_config(cls, config: Config) -> RelaySettings:
        """Settings of a router. Raises ConfigError for metadata that may not pass to nodes."""
        server, router = config.server, config.router
        extra = frozenset(name.strip().lower().encode() for name in router.forward_metadata)
        for name in extra:
            _check_forwarded(name)
        return cls(
            cluster_token=server.cluster_token.encode(),
            max_n=router.max_n,
            max_max_tokens=router.max_max_tokens,
            max_scan_bytes=router.max_scan_bytes,
            max_body_bytes=server.max_body_bytes,
            queue_timeout=router.timeout_ms / 1000,
            body_timeout=server.body_timeout,
            first_token=router.deadlines.first_token,
            between_tokens=router.deadlines.between_tokens,
            total=router.deadlines.total,
            max_attempts=router.retries.max_attempts,
            retry_backoff=router.retries.backoff_ms / 1000,
            max_retry_backoff=router.retries.max_backoff_ms / 1000,
            forward_metadata=extra,
            cors_origins=frozenset(origin.strip().encode() for origin in router.cors_origins),
            access_log=server.access_log,
            # A processor must be left for those who are waited for.
            busy_poll=router.busy_poll_us / 1e6 if usable_cpus() >= router.workers + 1 else 0.0,
            migration=MigrationSettings.from_config(router.migration),
        )


def _check_forwarded(name: bytes) -> None:
    key = "router.forward_metadata"
    if not name or name.startswith((b":", b"grpc-", b"laya-")):
        raise ConfigError(f"{key}: {name.decode()!r} is no name a client may choose; list plain metadata names")
    if name in _NEVER or name in headers.ROUTER_SET:
        raise ConfigError(f"{key}: {name.decode()!r} never passes to a node; take it out of the list")
