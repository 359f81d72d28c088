"""What nodes do wrong, told apart and told on: which refusals another node may mend, and what the client hears."""

from __future__ import annotations

from typing import Final

from shared.errors import Code, LayaError
from shared.net.api import INTERNAL_ERROR, PROTOCOL_ERROR

_BROKEN: Final = (PROTOCOL_ERROR, INTERNAL_ERROR)
_FAULTS: Final = (Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS)
FAULTY: Final = frozenset(b"%d" % code for code in _FAULTS)
_NO_ROOM: Final = frozenset(("QUEUE_FULL", "QUEUE_TIMEOUT", "OVERLOADED"))
_NOT_BEGUN: Final = _NO_ROOM | {"DRAINING", "NOT_READY", "UPLOADS_FULL"}


def no_room(error: LayaError) -> bool:
    """Whether a node refused for lack of room, and is to rest a moment.

    RESOURCE_EXHAUSTED alone does not say so: a message or a header block that is too large gets it too, and no node may
    rest for what one client sends it.
    """
    return error.code is Code.RESOURCE_EXHAUSTED and error.reason in _NO_ROOM


def not_begun(error: LayaError) -> bool:
    """Whether a node gave a request back that another node may well take."""
    return error.code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE) and error.reason in _NOT_BEGUN


def is_fault(error: LayaError) -> bool:
    """Whether what a node answers speaks against the node, not against the request."""
    return error.code in _FAULTS


def node_lost(node_id: str, what: str, retry_safe: bool, code: Code = Code.UNAVAILABLE) -> LayaError:
    """UNAVAILABLE NODE_LOST with the node, and whether asking again can do no harm beyond the work done twice."""
    return LayaError(
        code,
        "NODE_LOST",
        f"Node {node_id} {what}; {'try again' if retry_safe else 'what it had answered so far is incomplete'}.",
        retry_after=0.1 if retry_safe else None,
        metadata={"node": node_id, "retry_safe": "true" if retry_safe else "false"},
    )


def no_connection(node_id: str) -> LayaError:
    """No node that may be asked has a connection; each was given ``router.connect_timeout`` for one."""
    error = node_lost(node_id, "has no connection that can take the request", True)
    if error.metadata is not None:
        error.metadata["phase"] = "connect"
    return error


def lost(node_id: str, code: int, delivered: int, untouched: bool) -> LayaError:
    """The node's stream ended early, with an HTTP/2 code.

    ``untouched``: the client has seen nothing of an answer; else ``delivered`` bytes of it have been passed on.
    """
    if code in _BROKEN:
        error = node_lost(node_id, f"reset the call with HTTP/2 error {code}", False, Code.INTERNAL)
    elif untouched:
        return node_lost(node_id, "was lost before the answer began", True)
    else:
        error = node_lost(node_id, f"was lost in the middle of the answer, after {delivered} bytes of it", False)
    if error.metadata is not None:
        error.metadata["delivered_bytes"] = str(delivered)
    return error


def nonsense(node_id: str, what: str) -> LayaError:
    """A node ended its answer in a way that is none."""
    return LayaError(Code.INTERNAL, "NODE_PROTOCOL", f"Node {node_id} ended its answer with {what}: see its log.")


def too_large(limit: int) -> LayaError:
    """A first message that would have to be read, of more than ``limit`` bytes."""
    return LayaError(
        Code.INVALID_ARGUMENT,
        "BODY_TOO_LARGE",
        f"The first message is over the {limit} bytes that the router reads to route it: "
        "name the model in the metadata laya-model, and it need not be read.",
        http_status=413,
    )


def status_code(value: bytes) -> int:
    """A ``grpc-status`` as a number; UNKNOWN where it is none."""
    return int(value) if value.isdigit() and len(value) <= 2 else int(Code.UNKNOWN)
