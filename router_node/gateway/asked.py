"""What the head of a request asks for, read once for all requests that have the same."""

from __future__ import annotations

import math
from typing import Final

from router_node.gateway.reply import JSON, Cors
from router_node.gateway.tunnel import header_fields, request_opening
from router_node.relay import fields as routing
from router_node.relay import phases
from shared import headers as names
from shared.errors import Code, LayaError
from shared.ids import sane_request_id
from shared.net.api import Headers
from shared.net.exchange import RequestHead

# Passed to nodes through the tunnel, as the nodes' own list has it; each of these bodies is JSON with a "model".
TUNNELLED: Final = (b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/responses")
MAX_TARGET: Final = 4096  # bytes
OTHER: Final = "other"
_CONTENT_TYPE: Final = header_fields([JSON])


class Asked:
    """Read from a head by ``Reader``; nobody changes it, for requests with the same head share it.

    ``label`` stands for the path in logs and metrics; ``tunnelled`` says that the path is passed on to nodes.
    ``request_id`` is empty where the client has none, ``timeout`` infinite. ``forward`` are the headers that pass to
    the node, ``extra`` those of every answer; ``opening`` begins the message to the node.
    """

    __slots__ = (
        "authorization",
        "extra",
        "forward",
        "headers",
        "label",
        "opening",
        "path",
        "priority",
        "reader",
        "request_id",
        "session",
        "timeout",
        "tunnelled",
    )

    def __init__(self, reader: Reader, head: RequestHead) -> None:
        headers = dict(head.headers)
        asked = headers.get(names.REQUEST_ID)
        target = head.target
        self.reader = reader
        self.path = target.partition(b"?")[0]
        self.tunnelled = self.path in TUNNELLED and len(target) <= MAX_TARGET
        self.label = self.path.decode() if self.tunnelled else OTHER
        self.headers = headers
        self.authorization = authorization(head.headers)
        self.request_id = asked if asked is not None and sane_request_id(asked) else b""
        self.extra: Headers = reader.cors.headers(headers.get(b"origin")) if reader.cors.on else []
        self.session = b""
        self.priority: int | None = None
        self.timeout = math.inf  # seconds for the whole request
        self.forward: Headers = []
        self.opening = b""


def authorization(headers: Headers) -> bytes | None:
    """Whose a request says it is. Two keys make one that nobody has: who looked before us may have read the other."""
    found: bytes | None = None
    for name, value in headers:
        if name == b"authorization":
            found = value if found is None else found + b", " + value
    return found


class Reader:
    """Reads heads. ``forward`` are the names of headers that pass to nodes."""

    __slots__ = ("_forward", "cors")

    def __init__(self, cors: Cors, forward: frozenset[bytes]) -> None:
        self.cors = cors
        self._forward = forward

    def read(self, head: RequestHead) -> Asked:
        """What the head asks for; ``complete`` has more of it."""
        notes = head.notes
        if isinstance(notes, Asked) and notes.reader is self:
            return notes
        return Asked(self, head)

    def complete(self, asked: Asked, head: RequestHead) -> None:
        """Read what a request needs that goes to a node, if that has not been done. Raises LayaError."""
        if head.notes is asked:
            return
        headers = asked.headers
        coding = headers.get(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            raise LayaError(
                Code.INVALID_ARGUMENT,
                "INVALID_REQUEST",
                "The body is compressed, which is not supported: send it without content-encoding.",
                http_status=415,
            )
        session = headers.get(names.SESSION) or headers.get(b"x-session-id")
        if session:
            asked.session = routing.session(session, "laya-session")
        priority = headers.get(names.PRIORITY)
        if priority is not None:
            asked.priority = routing.priority(priority, "laya-priority")
        given = headers.get(names.TIMEOUT)
        if given is not None:
            asked.timeout = phases.client_limit(given)
        asked.forward = [(name, headers[name]) for name in self._forward.intersection(headers)]
        asked.opening = request_opening(b"POST", head.target, _CONTENT_TYPE)
        head.notes = asked
