"""Names of the metadata that Laya reads and writes, and who may set which.

Client-set names route a request without a look into its body; router-set names are stripped from what a client sends
and are trusted by the node, which accepts them only beside the cluster token.
"""

from __future__ import annotations

from typing import Final

# Set by clients (the SDK always sends the first five).
MODEL: Final = b"laya-model"  # model or alias
SESSION: Final = b"laya-session"  # conversation name, at most 256 bytes
PROMPT_TOKENS: Final = b"laya-prompt-tokens"  # estimate of the prompt's length, decimal tokens
MAX_TOKENS: Final = b"laya-max-tokens"  # new tokens at most, times n, decimal
PREFIX: Final = b"laya-prefix"  # chained xxh3-64 of byte blocks: up to 64 of 16 hex digits, with ","
PRIORITY: Final = b"laya-priority"  # signed decimal, lower is earlier
TIMEOUT: Final = b"laya-timeout-ms"  # over HTTP: time for the whole request; gRPC has grpc-timeout
TIMING: Final = b"laya-timing"  # "1": the node measures also what making and handing on its messages took
NO_MIGRATE: Final = b"laya-no-migrate"  # "1": this request must not go on elsewhere; see ``is_set``

# Set by the router for the node; stripped when a client sends them.
DISPATCH: Final = b"laya-dispatch"  # WATCHER_ID "-" number: names one reservation
TENANT: Final = b"laya-tenant"  # tenant of the API key
SALT: Final = b"laya-salt"  # prefix-cache salt of the tenant
REWRITE: Final = b"laya-rewrite"  # model name the node applies over the body
CLAMPS: Final = b"laya-clamps"  # JSON object of parameter defaults and clamps
CLUSTER_TOKEN: Final = b"laya-cluster-token"  # shared secret of router and nodes
RESUME: Final = b"laya-resume"  # "1": the request ends with a Resume that the router wrote

# Between router and node: the router asks with "1" for token ids beside a stream; the node answers "1" where the stream
# can go on elsewhere, else "0; " and why not.
JOURNAL: Final = b"laya-journal"

# Set by the router for the client, on response headers or trailers.
NODE: Final = b"laya-node"  # node that answered
ROUTE: Final = b"laya-route"  # rule that applied and the version of the table, as name@number
ROUTER_TIME: Final = b"laya-router-us"  # router's own work before the first byte to the node, microseconds
QUEUE_TIME: Final = b"laya-queue-us"  # wait in the router for a node with room, microseconds; only where there was one
MIGRATABLE: Final = b"laya-migratable"  # "1", or "0; " and why the stream cannot go on elsewhere
MIGRATED: Final = b"laya-migrated"  # trailer: "from=NODE to=NODE stall_ms=N", one for each time, with ","

REQUEST_ID: Final = b"x-request-id"
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"

CLIENT_SET: Final = frozenset((MODEL, SESSION, PROMPT_TOKENS, MAX_TOKENS, PREFIX, PRIORITY, NO_MIGRATE))
ROUTER_SET: Final = frozenset((DISPATCH, TENANT, SALT, REWRITE, CLAMPS, CLUSTER_TOKEN, RESUME, JOURNAL))

# What a gRPC request may carry from a client to a node; everything else is dropped.
TO_NODE: Final = CLIENT_SET | {
    b"te",
    b"content-type",
    b"grpc-encoding",
    b"grpc-accept-encoding",
    b"grpc-timeout",
    b"grpc-previous-rpc-attempts",
    b"user-agent",
    REQUEST_ID,
    TIMING,
    TRACEPARENT,
    TRACESTATE,
}

_NO: Final = frozenset((b"", b"0", b"false"))


def is_set(value: bytes | None) -> bool:
    """Whether a header that is a switch is on: not where it is missing, empty, ``0`` or ``false``; else it is."""
    return value is not None and value.strip().lower() not in _NO
