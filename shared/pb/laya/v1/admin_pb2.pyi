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

class DrainRouterRequest(_message.Message):
    __slots__ = ("grace_seconds",)
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    grace_seconds: float
    def __init__(self, grace_seconds: _Optional[float] = ...) -> None: ...

class DrainRouterResponse(_message.Message):
    __slots__ = ("in_flight",)
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    in_flight: int
    def __init__(self, in_flight: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("node_id", "grace_seconds", "undo", "migrate")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    MIGRATE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    grace_seconds: float
    undo: bool
    migrate: bool
    def __init__(self, node_id: _Optional[str] = ..., grace_seconds: _Optional[float] = ..., undo: _Optional[bool] = ..., migrate: _Optional[bool] = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ("drain",)
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: _node_pb2.DrainResponse
    def __init__(self, drain: _Optional[_Union[_node_pb2.DrainResponse, _Mapping]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("model", "session", "prompt_tokens", "max_tokens", "priority", "tenant", "prompt", "headers", "streaming", "structured", "tools")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    prompt_tokens: int
    max_tokens: int
    priority: int
    tenant: str
    prompt: str
    headers: _containers.ScalarMap[str, str]
    streaming: bool
    structured: bool
    tools: bool
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., prompt: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., streaming: _Optional[bool] = ..., structured: _Optional[bool] = ..., tools: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("node_id", "candidates", "summary", "route")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    summary: str
    route: RouteMatch
    def __init__(self, node_id: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., summary: _Optional[str] = ..., route: _Optional[_Union[RouteMatch, _Mapping]] = ...) -> None: ...

class RouteMatch(_message.Message):
    __slots__ = ("name", "number", "pools", "near")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    NEAR_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    pools: _containers.RepeatedScalarFieldContainer[str]
    near: _containers.RepeatedCompositeFieldContainer[RouteMiss]
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., pools: _Optional[_Iterable[str]] = ..., near: _Optional[_Iterable[_Union[RouteMiss, _Mapping]]] = ...) -> None: ...

class RouteMiss(_message.Message):
    __slots__ = ("name", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., why: _Optional[_Iterable[str]] = ...) -> None: ...

class RoutesVersion(_message.Message):
    __slots__ = ("lineage", "number", "digest")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    lineage: str
    number: int
    digest: str
    def __init__(self, lineage: _Optional[str] = ..., number: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class GetRoutesRequest(_message.Message):
    __slots__ = ("names", "number")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    number: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., number: _Optional[int] = ...) -> None: ...

class GetRoutesResponse(_message.Message):
    __slots__ = ("version", "rules_json", "live_number", "kept")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RULES_JSON_FIELD_NUMBER: _ClassVar[int]
    LIVE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    version: RoutesVersion
    rules_json: _containers.RepeatedScalarFieldContainer[str]
    live_number: int
    kept: str
    def __init__(self, version: _Optional[_Union[RoutesVersion, _Mapping]] = ..., rules_json: _Optional[_Iterable[str]] = ..., live_number: _Optional[int] = ..., kept: _Optional[str] = ...) -> None: ...

class ChangeRoutesRequest(_message.Message):
    __slots__ = ("put_json", "remove", "replace", "expected", "author", "note", "dry_run")
    PUT_JSON_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    put_json: _containers.RepeatedScalarFieldContainer[str]
    remove: _containers.RepeatedScalarFieldContainer[str]
    replace: bool
    expected: int
    author: str
    note: str
    dry_run: bool
    def __init__(self, put_json: _Optional[_Iterable[str]] = ..., remove: _Optional[_Iterable[str]] = ..., replace: _Optional[bool] = ..., expected: _Optional[int] = ..., author: _Optional[str] = ..., note: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RouteEdit(_message.Message):
    __slots__ = ("name", "before_json", "after_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEFORE_JSON_FIELD_NUMBER: _ClassVar[int]
    AFTER_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    before_json: str
    after_json: str
    def __init__(self, name: _Optional[str] = ..., before_json: _Optional[str] = ..., after_json: _Optional[str] = ...) -> None: ...

class ChangeRoutesResponse(_message.Message):
    __slots__ = ("version", "edits", "warnings")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    version: RoutesVersion
    edits: _containers.RepeatedCompositeFieldContainer[RouteEdit]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[_Union[RoutesVersion, _Mapping]] = ..., edits: _Optional[_Iterable[_Union[RouteEdit, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class RollBackRoutesRequest(_message.Message):
    __slots__ = ("number", "expected", "author", "dry_run")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    number: int
    expected: int
    author: str
    dry_run: bool
    def __init__(self, number: _Optional[int] = ..., expected: _Optional[int] = ..., author: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RollBackRoutesResponse(_message.Message):
    __slots__ = ("version", "edits", "warnings")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    version: RoutesVersion
    edits: _containers.RepeatedCompositeFieldContainer[RouteEdit]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[_Union[RoutesVersion, _Mapping]] = ..., edits: _Optional[_Iterable[_Union[RouteEdit, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class RouteHistoryRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class RouteChange(_message.Message):
    __slots__ = ("number", "author", "at", "note", "edits")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    number: int
    author: str
    at: float
    note: str
    edits: _containers.RepeatedCompositeFieldContainer[RouteEdit]
    def __init__(self, number: _Optional[int] = ..., author: _Optional[str] = ..., at: _Optional[float] = ..., note: _Optional[str] = ..., edits: _Optional[_Iterable[_Union[RouteEdit, _Mapping]]] = ...) -> None: ...

class RouteHistoryResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[RouteChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[RouteChange, _Mapping]]] = ...) -> None: ...
