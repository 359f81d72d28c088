"""Which headers pass, in both directions, and what a gRPC request's headers must look like.

Towards a node an allow-list holds: credentials, cookies and unknown names stop here, names that are the router's to
set are dropped when a client sends them, and the router adds its own. Towards a client only hop-by-hop headers and the
router's secrets are dropped. ``-bin`` values pass as they are.
"""

from __future__ import annotations

import re
from typing import Any, Final

from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.net.api import Headers
from shared.net.fields import CheckedHeaders
from shared.net.grpc_wire import is_grpc_type
from shared.net.once import once

_PATH: Final = re.compile(rb"/[^/]{1,127}/[^/]{1,127}").fullmatch  # /package.Service/Method

# Set anew by the router, or of use to the router alone: what a node does is in the message itself.
_NOT_FORWARDED: Final = names.CLIENT_SET | {names.REQUEST_ID, b"te", b"content-type"}
# A second value would let two readers disagree about the same request.
_SINGLE: Final = (
    (names.CLIENT_SET | {b"authorization", b"grpc-timeout", b"grpc-encoding", b"content-type", names.REQUEST_ID})
    | {b":method", b":path", b":scheme", b":authority"}
) - {names.PREFIX}

# Dropped from what a node answers.
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"trailer")
)
_OURS: Final = frozenset((names.NODE, names.REQUEST_ID, names.ROUTER_TIME, names.QUEUE_TIME))
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | names.ROUTER_SET | _OURS

GRPC: Final = (b"content-type", b"application/grpc")
_STATUS_200: Final = (b":status", b"200")
# What nodes of ours answer with, nearly always.
_PLAIN: Final[Headers] = [_STATUS_200, GRPC]
_FINE: Final[Headers] = [(b"grpc-status", b"0")]
# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_Checked: Final = CheckedHeaders
_NODE: Final = names.NODE
_REQUEST_ID: Final = names.REQUEST_ID
_TIMES: Final[tuple[Any, ...]] = tuple(once(names.ROUTER_TIME, b"%d" % micros) for micros in range(1024))


class HeaderRules:
    """The allow-list of one router: what the project needs and what its operator added."""

    __slots__ = ("_allowed",)

    def __init__(self, extra: frozenset[bytes] = frozenset()) -> None:
        self._allowed = (names.TO_NODE | extra) - _NOT_FORWARDED

    def check(self, headers: Headers) -> dict[bytes, bytes]:
        """A gRPC request's headers by name. Raises LayaError with one sentence for the first rule they break.

        The path is left to ``check_path``: a path that is known needs no look at its form.
        """
        fields = dict(headers)
        get = fields.get
        # What nearly every request looks like; whatever differs is looked at closely.
        if (
            get(b"content-type") != b"application/grpc"
            or get(b"te") != b"trailers"
            or get(b":method") != b"POST"
            or len(fields) != len(headers)
        ):
            _check(headers, fields)
        return fields

    def forward(self, headers: Headers, fields: dict[bytes, bytes]) -> Headers:
        """Those of a client's headers that pass to a node as they are; ``fields`` are the same by name.

        A value with bytes beyond ASCII, which HTTP allows and gRPC does not, is thrown away: it must not be an error.
        """
        allowed = self._allowed
        if len(fields) == len(headers):
            return [(name, fields[name]) for name in allowed.intersection(fields) if fields[name].isascii()]
        return [pair for pair in headers if pair[0] in allowed and pair[1].isascii()]


def check_path(path: bytes) -> None:
    """Raise LayaError UNIMPLEMENTED for a path that cannot be a gRPC method's."""
    if not _PATH(path):
        raise LayaError(
            Code.UNIMPLEMENTED,
            "METHOD_UNKNOWN",
            f"The path {_shown(path)} names no method: gRPC paths have the form /package.Service/Method.",
        )


def _check(headers: Headers, fields: dict[bytes, bytes]) -> None:
    """The rules one by one. Raises LayaError for the first that is broken."""
    if len(fields) != len(headers):
        _check_repeats(headers)
    method = fields.get(b":method", b"")
    if method != b"POST":
        raise invalid(f"The request's method is {_shown(method)}: gRPC calls use POST.", ":method")
    content_type = fields.get(b"content-type", b"")
    if not is_grpc_type(content_type):
        raise invalid(f"The content-type is {_shown(content_type)}: gRPC calls use application/grpc.")
    te = fields.get(b"te", b"trailers")
    if te != b"trailers":
        raise invalid(f"The te header is {_shown(te)}: the only value HTTP/2 allows is 'trailers'.", "te")


def _check_repeats(headers: Headers) -> None:
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in _SINGLE:
            shown = name.decode("ascii", "replace")
            raise invalid(f"The header {shown} is there more than once: send it once.", shown)
        seen.add(name)


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("ascii", "replace"))


def response_for_client(headers: Headers, node_id: str, request_id: bytes, routed: float) -> Headers:
    """A node's response headers without what is not for the client, with who answered and what routing took."""
    out: list[Any] = (
        _Checked(headers)
        if headers == _PLAIN
        else _Checked([pair for pair in headers if pair[0] not in _NOT_TO_CLIENT])
    )
    out.append((_NODE, node_id.encode()))
    out.append(once(_REQUEST_ID, request_id))
    micros = int(routed * 1e6)
    out.append(_TIMES[micros] if 0 <= micros < len(_TIMES) else once(names.ROUTER_TIME, b"%d" % micros))
    return out


def trailers_for_client(headers: Headers) -> CheckedHeaders:
    """A node's trailers without what is not for the client."""
    if headers == _FINE:
        return _Checked(headers)
    return _Checked([pair for pair in headers if pair[0] not in _NOT_TO_CLIENT])


def trailers_only(error: LayaError, request_id: bytes = b"") -> Headers:
    """A whole gRPC answer that is nothing but an error."""
    out: Headers = [_STATUS_200, GRPC, *error.grpc_trailers()]
    if request_id:
        out.append((names.REQUEST_ID, request_id))
    return out
