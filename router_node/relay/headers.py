"""Which headers pass, in both directions, and what a gRPC request's headers must look like.

Towards a node an allow-list holds: credentials, cookies and unknown names stop here, names that are the router's to
set are dropped when a client sends them, and the router adds its own. Towards a client only hop-by-hop headers and the
router's secrets are dropped. ``-bin`` values pass as they are.
"""

from __future__ import annotations

from typing import Final

from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.ids import sane_request_id
from shared.net.api import Headers
from shared.net.fields import CheckedHeaders
from shared.net.grpc_wire import is_grpc_type, parse_timeout

MAX_PATH: Final = 256  # bytes

# Set anew by the router, or read by the router alone.
_NOT_FORWARDED: Final = frozenset((names.PRIORITY, names.PREFIX, names.REQUEST_ID, b"te", b"content-type"))
# A second value would let two readers disagree about the same request.
_SINGLE: Final = (
    (names.CLIENT_SET | {b"authorization", b"grpc-timeout", b"grpc-encoding", b"content-type", names.REQUEST_ID})
    | {b":method", b":path", b":scheme", b":authority"}
) - {names.PREFIX}

# Dropped from what a node answers.
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"trailer")
)
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | names.ROUTER_SET | {names.NODE, names.REQUEST_ID, names.ROUTER_TIME}

GRPC: Final = (b"content-type", b"application/grpc")
_STATUS_200: Final = (b":status", b"200")


class RequestHead:
    """A gRPC request's headers after the checks.

    ``fields`` are all headers by name; ``forward`` those of the client's that may pass to a node; ``timeout`` is
    seconds, None without a limit.
    """

    __slots__ = ("authorization", "content_type", "encoding", "fields", "forward", "path", "request_id", "timeout")

    def __init__(self, path: bytes, fields: dict[bytes, bytes], forward: Headers, content_type: bytes) -> None:
        self.path = path
        self.fields = fields
        self.forward = forward
        self.content_type = content_type
        self.authorization = fields.get(b"authorization")
        self.encoding = fields.get(b"grpc-encoding", b"identity")
        timeout = fields.get(b"grpc-timeout")
        self.timeout = None if timeout is None else parse_timeout(timeout)
        request_id = fields.get(names.REQUEST_ID)
        self.request_id = request_id if request_id is not None and sane_request_id(request_id) else None


class HeaderRules:
    """The allow-list of one router: what the project needs and what its operator added."""

    __slots__ = ("_allowed",)

    def __init__(self, extra: frozenset[bytes] = frozenset()) -> None:
        self._allowed = (names.TO_NODE | extra) - _NOT_FORWARDED

    def read(self, headers: Headers) -> RequestHead:
        """Check a request's headers. Raises LayaError with one sentence for the first rule they break."""
        fields = dict(headers)
        if len(fields) != len(headers):
            _check_repeats(headers)
        get = fields.get
        if get(b":method") != b"POST":
            shown = _shown(get(b":method", b""))
            raise invalid(f"The request's method is {shown}: gRPC calls use POST.", ":method")
        content_type = get(b"content-type", b"")
        if not is_grpc_type(content_type):
            raise invalid(f"The content-type is {_shown(content_type)}: gRPC calls use application/grpc.")
        te = get(b"te")
        if te is not None and te != b"trailers":
            raise invalid(f"The te header is {_shown(te)}: the only value HTTP/2 allows is 'trailers'.", "te")
        path = get(b":path", b"")
        if len(path) > MAX_PATH or path[:1] != b"/" or path.count(b"/") != 2 or path[-1:] == b"/" or path[1:2] == b"/":
            raise LayaError(
                Code.UNIMPLEMENTED,
                "METHOD_UNKNOWN",
                f"The path {_shown(path)} names no method: gRPC paths have the form /package.Service/Method.",
            )
        allowed = self._allowed
        forward = [pair for pair in headers if pair[0] in allowed]
        if not b"".join([pair[1] for pair in forward]).isascii():
            _raise_not_ascii(forward)
        return RequestHead(path, fields, forward, content_type)


def _check_repeats(headers: Headers) -> None:
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in _SINGLE:
            shown = name.decode("ascii", "replace")
            raise invalid(f"The header {shown} is there more than once: send it once.", shown)
        seen.add(name)


def _raise_not_ascii(headers: Headers) -> None:
    for name, value in headers:
        if not value.isascii():
            shown = name.decode("ascii", "replace")
            raise invalid(
                f"The metadata {shown} has bytes beyond ASCII: use a name that ends in -bin for such values.", shown
            )


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("ascii", "replace"))


def response_for_client(headers: Headers, node: bytes, request_id: bytes, micros: int) -> CheckedHeaders:
    """A node's response headers without what is not for the client, with who answered and what routing took."""
    out = CheckedHeaders([pair for pair in headers if pair[0] not in _NOT_TO_CLIENT])
    out.append((names.NODE, node))
    out.append((names.REQUEST_ID, request_id))
    out.append((names.ROUTER_TIME, b"%d" % micros))
    return out


def trailers_for_client(headers: Headers) -> CheckedHeaders:
    """A node's trailers without what is not for the client."""
    return CheckedHeaders([pair for pair in headers if pair[0] not in _NOT_TO_CLIENT])


def trailers_only(error: LayaError, request_id: bytes = b"") -> Headers:
    """A whole gRPC answer that is nothing but an error."""
    out: Headers = [_STATUS_200, GRPC, *error.grpc_trailers()]
    if request_id:
        out.append((names.REQUEST_ID, request_id))
    return out
