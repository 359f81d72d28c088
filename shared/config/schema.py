"""The one configuration file: ``server``, ``router`` and ``inference``.

Every key has a default that is safe on a small machine. Values are checked by ``msgspec`` for type and by
``validate()`` of each section for sense; a message names the key and the fix. Times are seconds and sizes are bytes
unless the name says otherwise.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

LogLevel = Literal["debug", "info", "warning", "error"]


class ConfigError(Exception):
    """A configuration that cannot be used: one sentence with the key and the fix."""


def _need(ok: bool, key: str, why: str) -> None:
    if not ok:
        raise ConfigError(f"{key}: {why}")


class TlsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Certificates of a listener, or of the router towards its nodes. Empty paths mean no TLS."""

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""  # verifies the peer; on a listener it makes client certificates mandatory (mTLS)


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What router and node processes share."""

    host: str = "127.0.0.1"  # public listener of the router
    port: int = 8000  # 0 takes any free port
    log_level: LogLevel = "info"
    log_format: Literal["text", "json"] = "text"
    access_log: bool = True
    cluster: str = "laya"  # namespace of keys in Redis
    cluster_token: str = ""  # shared secret of routers and nodes; needed beyond loopback
    redis: str = ""  # redis://, rediss:// or unix:// URL; empty uses static nodes only
    keys_file: str = ""  # API keys, hashed; empty accepts every caller (loopback only)
    insecure: bool = False  # allow a bind beyond loopback without keys or cluster token
    drain_timeout: float = 30.0
    keepalive_time: float = 10.0  # PING after so long without a byte from the peer
    keepalive_timeout: float = 5.0  # the peer is dead when no answer comes in this time
    max_body_bytes: int = 32 << 20  # HTTP body, or one gRPC request message the router must buffer
    max_header_bytes: int = 64 << 10
    max_connections: int = 20_000
    max_streams_per_connection: int = 1000
    header_timeout: float = 10.0  # a request's headers must arrive in this time
    body_timeout: float = 60.0  # the longest pause while a request's body arrives
    idle_timeout: float = 300.0  # a connection without a request is closed after this
    otlp_endpoint: str = ""  # OTLP/HTTP trace collector; empty switches tracing off
    tls: TlsConfig = TlsConfig()

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(0 <= self.port <= 65535, "server.port", f"must be 0 to 65535, not {self.port}")
        for name in ("drain_timeout", "keepalive_time", "keepalive_timeout", "header_timeout", "body_timeout"):
            value = getattr(self, name)
            _need(0 < value <= 86_400, f"server.{name}", f"must be over 0 and at most 86400 seconds, not {value}")
        _need(self.max_body_bytes >= 1024, "server.max_body_bytes", "must be 1024 bytes or more")
        _need(4096 <= self.max_header_bytes <= 256 << 10, "server.max_header_bytes", "must be 4096 to 262144 bytes")
        _need(
            bool(self.tls.cert_file) == bool(self.tls.key_file),
            "server.tls",
            "cert_file and key_file go together; set both or neither",
        )


class RouterConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The router's own settings."""

    mode: Literal["memory", "hybrid", "persistent"] = "memory"
    cache_size: int = 65_536  # sessions and prefixes remembered
    timeout_ms: float = 10_000.0  # longest wait for a node with room before 429
    workers: int = 1
    admin_host: str = "127.0.0.1"  # private listener: Admin service, /metrics
    admin_port: int = 8001  # 0 takes any free port
    nodes: list[str] = []  # static nodes, host:port
    refresh_interval: float = 1.0  # how often the store is read for nodes
    connections_per_node: int = 1  # dialled ahead
    max_connections_per_node: int = 8
    connect_timeout: float = 3.0
    node_tls: TlsConfig = TlsConfig()
    max_n: int = 16
    max_max_tokens: int = 131_072
    max_queued: int = 1024  # requests waiting for room, all tenants together
    max_scan_bytes: int = 256 << 10  # first message read for its model when metadata is missing
    forward_metadata: list[str] = []  # more request metadata names that may pass to nodes
    cors_origins: list[str] = []  # origins that browsers may call from; "*" for any
    access_log_size: int = 65_536  # lines waiting to be written; more are dropped and counted
    http2_engine: Literal["ngh2", "h2"] = "ngh2"
    require_session_affinity: bool = False  # a session waits for its node rather than going elsewhere

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(0.05 <= self.refresh_interval <= 3600, "router.refresh_interval", "must be 0.05 to 3600 seconds")
        _need(self.cache_size >= 16, "router.cache_size", f"must be 16 or more, not {self.cache_size}")
        _need(0 < self.timeout_ms <= 3_600_000, "router.timeout_ms", "must be over 0 and at most 3600000")
        _need(1 <= self.workers <= 256, "router.workers", f"must be 1 to 256, not {self.workers}")
        _need(0 <= self.admin_port <= 65535, "router.admin_port", "must be 0 to 65535")
        _need(
            1 <= self.connections_per_node <= self.max_connections_per_node <= 256,
            "router.connections_per_node",
            "must be 1 or more and not above max_connections_per_node (at most 256)",
        )
        for i, node in enumerate(self.nodes):
            host, _, port = node.rpartition(":")
            _need(bool(host) and port.isdigit(), f"router.nodes[{i}]", f"must be host:port, not {node!r}")


class SimConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Cost model of the ``sim`` engine."""

    seed: int = 0
    kv_tokens: int = 524_288
    block_tokens: int = 16
    prefill_tokens_per_second: float = 8000.0
    decode_base_ms: float = 6.0
    decode_per_sequence_ms: float = 0.35
    prefix_cache: bool = True

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(self.kv_tokens >= self.block_tokens * 2, "inference.sim.kv_tokens", "must hold two blocks or more")
        _need(1 <= self.block_tokens <= 4096, "inference.sim.block_tokens", "must be 1 to 4096")
        _need(self.prefill_tokens_per_second > 0, "inference.sim.prefill_tokens_per_second", "must be over 0")
        _need(self.decode_base_ms >= 0, "inference.sim.decode_base_ms", "must be 0 or more")
        _need(self.decode_per_sequence_ms >= 0, "inference.sim.decode_per_sequence_ms", "must be 0 or more")


class InferenceConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One node's engine, model and memory."""

    host: str = "127.0.0.1"
    port: int = 0  # 0 takes any free port
    advertise: str = ""  # host:port that routers dial; empty takes host and the bound port
    node_id: str = ""  # empty makes one of host name and port
    engine: str = "auto"  # auto, vllm, sim
    model: str = ""  # folder, GGUF file, or hub id with an optional @revision
    served_model_name: str = ""  # name clients ask for; empty takes the folder's or repository's name
    aliases: list[str] = []
    revision: str = ""
    max_seq_len: int = 0  # 0 takes a safe part of the model's own context
    max_num_seqs: int = 0  # 0 lets the engine's memory decide
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    swap_space: float | None = None  # accepted for old files; vLLM has none any more
    enable_streaming: bool = True
    quantization: str = ""
    dtype: str = "auto"
    kv_cache_memory_bytes: int = 0  # 0 lets the node decide
    default_max_tokens: int = 512
    max_queued: int = 256  # requests waiting in the node
    max_queue_seconds: float = 2.0  # longest wait in the node before RESOURCE_EXHAUSTED
    max_prefill_tokens: int = 0  # prompt tokens in prefill at once; 0 takes a value from the engine
    cpu_threads: str = ""  # cores of this node, as "0-3,6"; empty takes all
    offline: bool = False  # never ask a hub; also on when HF_HUB_OFFLINE is set
    trust_remote_code: bool = False
    allowed_media_domains: list[str] = []
    heartbeat: float = 2.0  # how often the registration is refreshed
    registration_ttl: float = 8.0  # a node silent for this long leaves the table
    engine_args: dict[str, Any] = {}  # anything else the engine takes, checked against its own arguments
    sim: SimConfig = SimConfig()

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(0 <= self.port <= 65535, "inference.port", f"must be 0 to 65535, not {self.port}")
        _need(self.max_seq_len >= 0, "inference.max_seq_len", f"must be 0 (automatic) or more, not {self.max_seq_len}")
        _need(self.max_num_seqs >= 0, "inference.max_num_seqs", "must be 0 (automatic) or more")
        _need(
            0 < self.gpu_memory_utilization <= 1,
            "inference.gpu_memory_utilization",
            f"must be over 0 and at most 1, not {self.gpu_memory_utilization}",
        )
        _need(self.default_max_tokens >= 1, "inference.default_max_tokens", "must be 1 or more")
        _need(self.max_queue_seconds >= 0, "inference.max_queue_seconds", "must be 0 or more")
        _need(self.max_queued >= 0, "inference.max_queued", "must be 0 or more")
        _need(
            self.registration_ttl > self.heartbeat > 0,
            "inference.registration_ttl",
            "must be longer than inference.heartbeat, which must be over 0",
        )
        self.sim.validate()


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    router: RouterConfig = RouterConfig()
    inference: InferenceConfig = InferenceConfig()

    def validate(self) -> None:
        """Raise ConfigError for the first value that makes no sense."""
        self.server.validate()
        self.router.validate()
        self.inference.validate()
