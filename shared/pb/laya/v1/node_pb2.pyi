from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("node_id", "boot_id", "version", "protocol", "model", "kv_capacity_tokens", "kv_block_tokens", "max_num_seqs", "default_max_tokens", "ready", "overcommit", "kv_groups", "tells_evictions")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    OVERCOMMIT_FIELD_NUMBER: _ClassVar[int]
    KV_GROUPS_FIELD_NUMBER: _ClassVar[int]
    TELLS_EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    boot_id: str
    version: str
    protocol: int
    model: ModelSpec
    kv_capacity_tokens: int
    kv_block_tokens: int
    max_num_seqs: int
    default_max_tokens: int
    ready: bool
    overcommit: bool
    kv_groups: _containers.RepeatedCompositeFieldContainer[KvGroup]
    tells_evictions: bool
    def __init__(self, node_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., model: _Optional[_Union[ModelSpec, _Mapping]] = ..., kv_capacity_tokens: _Optional[int] = ..., kv_block_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., default_max_tokens: _Optional[int] = ..., ready: _Optional[bool] = ..., overcommit: _Optional[bool] = ..., kv_groups: _Optional[_Iterable[_Union[KvGroup, _Mapping]]] = ..., tells_evictions: _Optional[bool] = ...) -> None: ...

class KvGroup(_message.Message):
    __slots__ = ("copies", "block_tokens", "most_blocks", "extra_blocks")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    copies: int
    block_tokens: int
    most_blocks: int
    extra_blocks: int
    def __init__(self, copies: _Optional[int] = ..., block_tokens: _Optional[int] = ..., most_blocks: _Optional[int] = ..., extra_blocks: _Optional[int] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("name", "aliases", "revision", "max_seq_len", "quantization", "engine")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    revision: str
    max_seq_len: int
    quantization: str
    engine: str
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., max_seq_len: _Optional[int] = ..., quantization: _Optional[str] = ..., engine: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("watcher_id",)
    WATCHER_ID_FIELD_NUMBER: _ClassVar[int]
    watcher_id: str
    def __init__(self, watcher_id: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("sequence", "boot_id", "kv_capacity_tokens", "headroom_tokens", "running", "waiting", "queued_prefill_tokens", "prefix_hit_rate", "prefill_tokens_per_second", "decode_tokens_per_second", "counted_dispatches", "full", "draining", "ready", "closed_reason", "usages", "evictions")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    COUNTED_DISPATCHES_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CLOSED_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    boot_id: str
    kv_capacity_tokens: int
    headroom_tokens: int
    running: int
    waiting: int
    queued_prefill_tokens: int
    prefix_hit_rate: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    counted_dispatches: _containers.RepeatedScalarFieldContainer[str]
    full: bool
    draining: bool
    ready: bool
    closed_reason: str
    usages: _containers.RepeatedCompositeFieldContainer[DispatchUsage]
    evictions: _containers.RepeatedCompositeFieldContainer[Eviction]
    def __init__(self, sequence: _Optional[int] = ..., boot_id: _Optional[str] = ..., kv_capacity_tokens: _Optional[int] = ..., headroom_tokens: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., queued_prefill_tokens: _Optional[int] = ..., prefix_hit_rate: _Optional[float] = ..., prefill_tokens_per_second: _Optional[float] = ..., decode_tokens_per_second: _Optional[float] = ..., counted_dispatches: _Optional[_Iterable[str]] = ..., full: _Optional[bool] = ..., draining: _Optional[bool] = ..., ready: _Optional[bool] = ..., closed_reason: _Optional[str] = ..., usages: _Optional[_Iterable[_Union[DispatchUsage, _Mapping]]] = ..., evictions: _Optional[_Iterable[_Union[Eviction, _Mapping]]] = ...) -> None: ...

class DispatchUsage(_message.Message):
    __slots__ = ("dispatch", "prompt_tokens", "cached_tokens")
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    dispatch: str
    prompt_tokens: int
    cached_tokens: int
    def __init__(self, dispatch: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Eviction(_message.Message):
    __slots__ = ("dispatch", "kept_tokens")
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    dispatch: str
    kept_tokens: int
    def __init__(self, dispatch: _Optional[str] = ..., kept_tokens: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_seconds", "undo", "migrate")
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    MIGRATE_FIELD_NUMBER: _ClassVar[int]
    grace_seconds: float
    undo: bool
    migrate: bool
    def __init__(self, grace_seconds: _Optional[float] = ..., undo: _Optional[bool] = ..., migrate: _Optional[bool] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("draining", "running", "waiting")
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    running: int
    waiting: int
    def __init__(self, draining: _Optional[bool] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ...) -> None: ...
