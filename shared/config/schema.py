"""The one configuration file: ``server``, ``router``, ``inference`` and ``tracing``.

Every key has a default that is safe on a small machine. Values are checked by ``msgspec`` for type and by
``validate()`` of each section for sense; a message names the key and the fix. Times are seconds and sizes are bytes
unless the name says otherwise.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shared.config.checks import ConfigError as ConfigError
from shared.config.checks import need as _need
from shared.config.migration import MigrationConfig
from shared.config.tracing import TracingConfig

LogLevel = Literal["debug", "info", "warning", "error"]


class TlsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Certificates of a listener, or of the router towards its nodes. Empty paths mean no TLS."""

    cert_file: str = ""  # PEM certificate with its chain
    key_file: str = ""  # PEM private key of cert_file
    ca_file: str = ""  # verifies the peer; on a listener it makes client certificates mandatory (mTLS)


class ConsulConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where routers find nodes, and nodes register, in Consul. An empty address means without."""

    address: str = ""  # http://HOST:PORT or https://HOST:PORT of an agent
    token: str = ""  # ACL token
    datacenter: str = ""  # empty takes the agent's own
    service: str = "laya-node"  # name of the service
    tags: list[str] = []  # nodes register with all of them, routers take nodes that have all of them
    wait: float = 30.0  # how long a query waits for news
    ttl: float = 15.0  # a node silent for this long is critical
    ca_file: str = ""  # PEM, verifies an https agent

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        ok = not self.address or self.address.startswith(("http://", "https://"))
        _need(ok, "server.consul.address", f"must be http://HOST:PORT or https://HOST:PORT, not {self.address!r}")
        _need(bool(self.service), "server.consul.service", "must name a service")
        _need(1 <= self.wait <= 300, "server.consul.wait", "must be 1 to 300 seconds")
        _need(2 <= self.ttl <= 3600, "server.consul.ttl", "must be 2 to 3600 seconds")


class DnsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A name behind which there are nodes."""

    name: str  # host name; a headless service, tasks.SERVICE, or the name of SRV records
    port: int = 0  # of the nodes at each address; 0 asks for SRV records
    interval: float = 10.0  # looked up again after so long at the latest
    model: str = ""  # what the nodes must serve; empty takes whatever they do
    revision: str = ""  # and at which revision

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(0 < len(self.name) <= 253, "router.dns.name", "must be a host name")
        _need(0 <= self.port <= 65535, "router.dns.port", "must be 1 to 65535, or 0 for SRV records")
        _need(1 <= self.interval <= 3600, "router.dns.interval", "must be 1 to 3600 seconds")


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What router and node processes share."""

    host: str = "127.0.0.1"  # public listener of the router
    port: int = 8000  # 0 takes any free port
    log_level: LogLevel = "info"  # least level that is written
    log_format: Literal["text", "json"] = "text"  # text for people, json for machines
    access_log: bool = True  # one line for each request
    cluster: str = "laya"  # namespace of keys in Redis
    cluster_token: str = ""  # shared secret of routers and nodes; needed beyond loopback
    redis: str = ""  # redis://, rediss:// or unix:// URL; empty uses static nodes only
    keys_file: str = ""  # API keys, hashed; empty accepts every caller (loopback only)
    insecure: bool = False  # allow a bind beyond loopback without keys or cluster token
    drain_timeout: float = 30.0  # time that running requests have to finish once a process drains
    drain_delay: float = 0.0  # a router that ends says so for this time before it closes its port
    keepalive_time: float = 10.0  # PING after so long without a byte from the peer
    keepalive_timeout: float = 5.0  # the peer is dead when no answer comes in this time
    max_body_bytes: int = 32 << 20  # HTTP body, or one gRPC request message the router must buffer
    max_header_bytes: int = 64 << 10  # headers of one request
    max_connections: int = 20_000  # open at once; more are closed
    max_streams_per_connection: int = 1000  # HTTP/2 requests at once on one connection
    header_timeout: float = 10.0  # a request's headers must arrive in this time
    body_timeout: float = 60.0  # the longest pause while a request's body arrives
    idle_timeout: float = 300.0  # a connection without a request is closed after this
    max_connection_age: float = 0.0  # a connection is replaced after this, without a failed call; 0: never
    max_connection_age_grace: float = 600.0  # requests on an old connection have so long to end
    tls: TlsConfig = TlsConfig()  # of the public port of the router, and of nodes beyond loopback
    consul: ConsulConfig = ConsulConfig()  # another way to find nodes

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(0 <= self.port <= 65535, "server.port", f"must be 0 to 65535, not {self.port}")
        for name in ("drain_timeout", "keepalive_time", "keepalive_timeout", "header_timeout", "body_timeout"):
            value = getattr(self, name)
            _need(0 < value <= 86_400, f"server.{name}", f"must be over 0 and at most 86400 seconds, not {value}")
        for name, least in (("drain_delay", 0.0), ("max_connection_age", 0.0), ("max_connection_age_grace", 0.1)):
            value = getattr(self, name)
            _need(least <= value <= 31_536_000, f"server.{name}", f"must be {least:g} to 31536000 seconds, not {value}")
        _need(self.max_body_bytes >= 1024, "server.max_body_bytes", "must be 1024 bytes or more")
        _need(4096 <= self.max_header_bytes <= 256 << 10, "server.max_header_bytes", "must be 4096 to 262144 bytes")
        _need(
            bool(self.tls.cert_file) == bool(self.tls.key_file),
            "server.tls",
            "cert_file and key_file go together; set both or neither",
        )
        self.consul.validate()


class RoutesConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Rules that lead requests to pools, see the page on routing. A store's table stands over what is written here."""

    rules: list[dict[str, Any]] = []  # rules
    file: str = ""  # YAML file with more of them, as `rules` or as a list
    watch: bool = False  # put the file's rules in place whenever it changes
    snapshot_file: str = ""  # the last table is kept here, for a start while the store is away
    reconcile_interval: float = 5.0  # how often the store's table is compared with ours, beside following its log

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(0.1 <= self.reconcile_interval <= 3600, "router.routes.reconcile_interval", "must be 0.1 to 3600 seconds")
        _need(not self.watch or bool(self.file), "router.routes.watch", "needs router.routes.file")


class DeadlinesConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Time limits of a request's phases; 0 is no limit. A client's own deadline can only shorten them."""

    first_token: float = 180.0  # from a node's taking a request to the first token of its streamed answer
    between_tokens: float = 60.0  # from one token of a streamed answer to the next
    total: float = 0.0  # from a request's arrival to its end

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        for name in ("first_token", "between_tokens", "total"):
            value = getattr(self, name)
            _need(0 <= value <= 86_400, f"router.deadlines.{name}", f"must be 0 (none) to 86400 seconds, not {value}")


class RetriesConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Requests that a node failed before any of its answer was passed on are sent to another one."""

    max_attempts: int = 3  # nodes tried for one request, the first included
    share: float = 0.2  # of a pool's requests that may be retries; what a node gave back unread does not count
    burst: int = 100  # retries beyond that share at once
    backoff_ms: float = 25.0  # wait before the second retry, with jitter, doubled before each further one
    max_backoff_ms: float = 1000.0  # the longest such wait

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(1 <= self.max_attempts <= 16, "router.retries.max_attempts", f"must be 1 to 16, not {self.max_attempts}")
        _need(0 <= self.share <= 1, "router.retries.share", f"must be 0 to 1, not {self.share}")
        _need(0 <= self.burst <= 1_000_000, "router.retries.burst", f"must be 0 to 1000000, not {self.burst}")
        least, most = self.backoff_ms, self.max_backoff_ms
        _need(
            0 < least <= most <= 60_000, "router.retries.backoff_ms", "must be over 0, at most max_backoff_ms (60000)"
        )


class OutlierConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """When a node that fails its requests, or is far slower than its like, rests for a while."""

    enabled: bool = True  # judge nodes at all
    consecutive_failures: int = 5  # requests failed in a row
    failure_share: float = 0.3  # by so much a node's share of failures must exceed that of the rest of its pool
    latency_factor: float = 5.0  # so many times the others' its mean time to the first token must be
    min_requests: int = 20  # requests before shares and means are compared
    rest: float = 5.0  # rest of a node the first time; doubled each further time in a row
    longest_rest: float = 60.0  # the longest rest
    max_ejected_share: float = 0.5  # of a pool's live nodes that may rest at once, rounded down

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        for name, least, most in (
            ("consecutive_failures", 1, 1_000_000),
            ("failure_share", 0.01, 1),
            ("latency_factor", 1.5, 1000),
            ("min_requests", 1, 1_000_000),
            ("rest", 0.05, 3600),
            ("longest_rest", 0.05, 86_400),
            ("max_ejected_share", 0, 1),
        ):
            value = getattr(self, name)
            _need(least <= value <= most, f"router.outlier.{name}", f"must be {least:g} to {most:g}, not {value}")


class RouterConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The router's own settings."""

    mode: Literal["auto", "memory", "hybrid", "persistent"] = "auto"  # of sessions; auto: hybrid where there is a store
    cache_size: int = 65_536  # sessions and prefixes remembered
    timeout_ms: float = 10_000.0  # longest wait for a node with room before 429
    workers: int = 1  # processes that share the port
    busy_poll_us: float = 200.0  # microseconds awake for the next request while they come that fast; 0 never
    admin_host: str = "127.0.0.1"  # private listener: Admin service, /metrics
    admin_port: int = 8001  # 0 takes any free port
    nodes: list[str] = []  # static nodes, host:port
    dns: list[DnsConfig] = []  # names of nodes: name, port, interval, model, revision
    refresh_interval: float = 1.0  # how often the store is read for nodes
    connections_per_node: int = 1  # dialled ahead
    max_connections_per_node: int = 8  # opened when the first are full
    connect_timeout: float = 3.0  # for a connection to a node
    node_tls: TlsConfig = TlsConfig()  # towards the nodes; empty speaks plain HTTP/2 to them
    max_n: int = 16  # sequences that one request may ask for
    max_max_tokens: int = 131_072  # new tokens that one request may ask for
    max_queued: int = 1024  # requests waiting for room, all tenants together
    max_scan_bytes: int = 256 << 10  # first message read for its model when metadata is missing
    forward_metadata: list[str] = []  # more request metadata names that may pass to nodes
    cors_origins: list[str] = []  # origins that browsers may call from; "*" for any
    access_log_size: int = 65_536  # lines waiting to be written; more are dropped and counted
    http2_engine: Literal["ngh2", "h2"] = "ngh2"  # library that frames HTTP/2
    require_session_affinity: bool = False  # a session waits for its node rather than going elsewhere
    routes: RoutesConfig = RoutesConfig()  # rules that stand before the models
    outlier: OutlierConfig = OutlierConfig()  # nodes that rest because they fail
    retries: RetriesConfig = RetriesConfig()  # of requests that a node failed
    deadlines: DeadlinesConfig = DeadlinesConfig()  # time limits beside timeout_ms and connect_timeout
    migration: MigrationConfig = MigrationConfig()  # of streams whose node is lost

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(0.05 <= self.refresh_interval <= 3600, "router.refresh_interval", "must be 0.05 to 3600 seconds")
        _need(self.cache_size >= 16, "router.cache_size", f"must be 16 or more, not {self.cache_size}")
        _need(0 < self.timeout_ms <= 3_600_000, "router.timeout_ms", "must be over 0 and at most 3600000")
        self.deadlines.validate()
        self.retries.validate()
        self.migration.validate()
        self.outlier.validate()
        _need(1 <= self.workers <= 256, "router.workers", f"must be 1 to 256, not {self.workers}")
        _need(0 <= self.busy_poll_us <= 10_000, "router.busy_poll_us", "must be 0 to 10000 microseconds")
        _need(0 <= self.admin_port <= 65535, "router.admin_port", "must be 0 to 65535")
        _need(
            1 <= self.connections_per_node <= self.max_connections_per_node <= 256,
            "router.connections_per_node",
            "must be 1 or more and not above max_connections_per_node (at most 256)",
        )
        self.routes.validate()
        for one in self.dns:
            one.validate()
        for i, node in enumerate(self.nodes):
            host, _, port = node.rpartition(":")
            _need(bool(host) and port.isdigit(), f"router.nodes[{i}]", f"must be host:port, not {node!r}")


class SimConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Cost model of the ``sim`` engine."""

    seed: int = 0  # of the text it makes up
    kv_tokens: int = 524_288  # size of the simulated KV cache
    block_tokens: int = 16  # tokens in one of its blocks
    prefill_tokens_per_second: float = 8000.0  # speed of prefill
    decode_base_ms: float = 6.0  # length of a step that decodes
    decode_per_sequence_ms: float = 0.35  # and what each sequence in it adds
    prefix_cache: bool = True  # keep blocks of prompts for the next that begins alike

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        _need(self.kv_tokens >= self.block_tokens * 2, "inference.sim.kv_tokens", "must hold two blocks or more")
        _need(1 <= self.block_tokens <= 4096, "inference.sim.block_tokens", "must be 1 to 4096")
        _need(self.prefill_tokens_per_second > 0, "inference.sim.prefill_tokens_per_second", "must be over 0")
        _need(self.decode_base_ms >= 0, "inference.sim.decode_base_ms", "must be 0 or more")
        _need(self.decode_per_sequence_ms >= 0, "inference.sim.decode_per_sequence_ms", "must be 0 or more")


class GuardConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a node watches while it runs. At a soft limit it takes nothing new until the value has fallen again."""

    enabled: bool = True  # watch at all
    interval: float = 1.0  # time between two looks
    soft_memory_fraction: float = 0.95  # of the tightest memory limit (cgroup or machine), page cache left out; 0: off
    soft_memory_stall: float = 25.0  # percent of time in which all tasks wait for memory (PSI full, 10 s); 0: off
    soft_rss_bytes: int = 0  # resident memory of the node and its engine; 0: off
    soft_gpu_memory_fraction: float = 0.0  # of a GPU's memory; 0 takes a share above gpu_memory_utilization
    soft_gpu_celsius: float = 0.0  # temperature of a GPU; 0 takes two below where its driver slows it down
    soft_gpu_power_fraction: float = 0.0  # of a GPU's power limit; 0: off, because full load reaches it
    hysteresis: float = 0.02  # share of a limit by which the value must fall before the node takes requests again
    resume_seconds: float = 3.0  # time for which it must have stayed there

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        for name, most in (
            ("soft_memory_fraction", 1.0),
            ("soft_memory_stall", 100.0),
            ("soft_gpu_memory_fraction", 1.0),
            ("soft_gpu_celsius", 150.0),
            ("soft_gpu_power_fraction", 10.0),
        ):
            value = getattr(self, name)
            _need(0 <= value <= most, f"inference.guard.{name}", f"must be 0 to {most:g}, not {value}")
        _need(self.soft_rss_bytes >= 0, "inference.guard.soft_rss_bytes", "must be 0 (off) or more")
        _need(0.05 <= self.interval <= 60, "inference.guard.interval", f"must be 0.05 to 60, not {self.interval}")
        _need(0 <= self.hysteresis <= 0.5, "inference.guard.hysteresis", f"must be 0 to 0.5, not {self.hysteresis}")
        value = self.resume_seconds
        _need(0 <= value <= 3600, "inference.guard.resume_seconds", f"must be 0 to 3600, not {value}")


class InferenceConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One node's engine, model and memory."""

    host: str = "127.0.0.1"
    port: int = 0  # 0 takes any free port
    advertise: str = ""  # host:port that routers dial; empty takes host and the bound port
    node_id: str = ""  # empty makes one of host name and port
    engine: str = "auto"  # auto, vllm, llama_cpp, sim
    model: str = ""  # folder, GGUF file, or hub id with an optional @revision
    served_model_name: str = ""  # name clients ask for; empty takes the folder's or repository's name
    aliases: list[str] = []  # other names for the model
    revision: str = ""  # of a hub id; empty takes the newest
    max_seq_len: int = 0  # 0 takes a safe part of the model's own context
    max_num_seqs: int = 0  # 0 lets the engine's memory decide
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory that vLLM takes
    enforce_eager: bool = False  # no compilation: starts sooner, decodes slower; always so on a CPU
    swap_space: float | None = None  # accepted for old files; vLLM has none any more
    enable_streaming: bool = True  # off: calls that stream are refused, whole answers only
    quantization: str = ""  # how the weights are quantized, where the files do not say
    dtype: str = "auto"  # type of weights and activations that are not quantized
    kv_cache_memory_bytes: int = 0  # 0 lets the node decide
    default_max_tokens: int = 512  # new tokens of a request that names no number
    max_queued: int = 256  # requests waiting in the node
    max_queued_tokens: int = 0  # prompt tokens waiting in each lane; 0 takes queue_prefill_seconds at the measured rate
    max_queue_seconds: float = 2.0  # longest wait in the node before RESOURCE_EXHAUSTED
    queue_prefill_seconds: float = 2.0  # prefill work that may wait in each lane
    max_prefill_tokens: int = 0  # prompt tokens in prefill at once; 0 takes two steps of the engine
    long_prompt_tokens: int = 0  # a longer prompt takes the long lane; 0 takes one step of the engine
    priority_ageing_seconds: float = 2.0  # so long a wait is worth one level of priority
    ramp_seconds: float = 3.0  # time after READY in which the node goes from a quarter of its room to all of it
    overcommit: bool = False  # promise KV by learned output lengths: more at once, and preemption becomes possible
    overcommit_quantile: float = 0.95  # share of recent outputs that a hold would have covered
    kv_events: bool = True  # tell routers what the prefix cache has evicted, where the engine says so
    cpu_threads: str = ""  # cores of this node, as "0-3,6"; empty takes all
    offline: bool = False  # never ask a hub; also on when HF_HUB_OFFLINE is set
    trust_remote_code: bool = False  # run Python code that comes with a model
    allowed_media_domains: list[str] = []  # hosts that images may be fetched from; empty allows none
    heartbeat: float = 2.0  # how often the registration is refreshed
    registration_ttl: float = 8.0  # a node silent for this long leaves the table
    engine_args: dict[str, Any] = {}  # anything else the engine takes, checked against its own arguments
    guard: GuardConfig = GuardConfig()  # when the node sheds load to save the machine
    sim: SimConfig = SimConfig()  # cost model of engine: sim

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
        for name in ("max_queued_tokens", "max_prefill_tokens", "long_prompt_tokens"):
            value = getattr(self, name)
            _need(value >= 0, f"inference.{name}", f"must be 0 (automatic) or more, not {value}")
        for name, most in (("queue_prefill_seconds", 60.0), ("ramp_seconds", 3600.0)):
            value = getattr(self, name)
            _need(0 <= value <= most, f"inference.{name}", f"must be 0 to {most:g} seconds, not {value}")
        value = self.priority_ageing_seconds
        _need(0 < value <= 86_400, "inference.priority_ageing_seconds", f"must be over 0, at most 86400, not {value}")
        value = self.overcommit_quantile
        _need(0.5 <= value < 1, "inference.overcommit_quantile", f"must be 0.5 or more and below 1, not {value}")
        _need(
            self.registration_ttl > self.heartbeat > 0,
            "inference.registration_ttl",
            "must be longer than inference.heartbeat, which must be over 0",
        )
        self.guard.validate()
        self.sim.validate()


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    router: RouterConfig = RouterConfig()
    inference: InferenceConfig = InferenceConfig()
    tracing: TracingConfig = TracingConfig()

    def validate(self) -> None:
        """Raise ConfigError for the first value that makes no sense."""
        self.server.validate()
        self.router.validate()
        self.inference.validate()
        self.tracing.validate()
