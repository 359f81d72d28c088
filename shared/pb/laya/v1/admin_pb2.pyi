from shared.pb.laya.v1 import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "address", "model", "state", "source", "report_age_seconds", "report", "reserved_tokens", "streams", "connections", "detail")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REPORT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    model: _node_pb2.ModelSpec
    state: str
    source: str
    report_age_seconds: float
    report: _node_pb2.WatchResponse
    reserved_tokens: int
    streams: int
    connections: int
    detail: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., model: _Optional[_Union[_node_pb2.ModelSpec, _Mapping]] = ..., state: _Optional[str] = ..., source: _Optional[str] = ..., report_age_seconds: _Optional[float] = ..., report: _Optional[_Union[_node_pb2.WatchResponse, _Mapping]] = ..., reserved_tokens: _Optional[int] = ..., streams: _Optional[int] = ..., connections: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ...) -> None: ...

class ListRoutesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouteStatus(_message.Message):
    __slots__ = ("name", "models", "node_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    models: _containers.RepeatedScalarFieldContainer[str]
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListRoutesResponse(_message.Message):
    __slots__ = ("routes",)
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    routes: _containers.RepeatedCompositeFieldContainer[RouteStatus]
    def __init__(self, routes: _Optional[_Iterable[_Union[RouteStatus, _Mapping]]] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("node_id", "grace_seconds", "undo")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    grace_seconds: float
    undo: bool
    def __init__(self, node_id: _Optional[str] = ..., grace_seconds: _Optional[float] = ..., undo: _Optional[bool] = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ("drain",)
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: _node_pb2.DrainResponse
    def __init__(self, drain: _Optional[_Union[_node_pb2.DrainResponse, _Mapping]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("model", "session", "prompt_tokens", "max_tokens", "priority", "tenant", "prompt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    prompt_tokens: int
    max_tokens: int
    priority: int
    tenant: str
    prompt: str
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., prompt: _Optional[str] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("node_id", "cost_seconds", "queued_tokens", "reserved_tokens", "uncached_prompt_tokens", "prefill_rate", "kv_share", "barrier_seconds", "reason", "pending_tokens", "pending_seconds", "reserved_seconds", "prompt_seconds", "prompt_weight", "step_seconds", "unseen_seconds", "stale_seconds", "penalty_seconds")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    COST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RATE_FIELD_NUMBER: _ClassVar[int]
    KV_SHARE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PENDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PENDING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PENALTY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    cost_seconds: float
    queued_tokens: int
    reserved_tokens: int
    uncached_prompt_tokens: int
    prefill_rate: float
    kv_share: float
    barrier_seconds: float
    reason: str
    pending_tokens: int
    pending_seconds: float
    reserved_seconds: float
    prompt_seconds: float
    prompt_weight: float
    step_seconds: float
    unseen_seconds: float
    stale_seconds: float
    penalty_seconds: float
    def __init__(self, node_id: _Optional[str] = ..., cost_seconds: _Optional[float] = ..., queued_tokens: _Optional[int] = ..., reserved_tokens: _Optional[int] = ..., uncached_prompt_tokens: _Optional[int] = ..., prefill_rate: _Optional[float] = ..., kv_share: _Optional[float] = ..., barrier_seconds: _Optional[float] = ..., reason: _Optional[str] = ..., pending_tokens: _Optional[int] = ..., pending_seconds: _Optional[float] = ..., reserved_seconds: _Optional[float] = ..., prompt_seconds: _Optional[float] = ..., prompt_weight: _Optional[float] = ..., step_seconds: _Optional[float] = ..., unseen_seconds: _Optional[float] = ..., stale_seconds: _Optional[float] = ..., penalty_seconds: _Optional[float] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("node_id", "candidates", "summary")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    summary: str
    def __init__(self, node_id: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., summary: _Optional[str] = ...) -> None: ...
