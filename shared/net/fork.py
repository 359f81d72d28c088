"""One port, two kinds of HTTP/2 requests: gRPC calls, and plain HTTP."""

from __future__ import annotations

from shared.net.api import Acceptor, Headers, ServerSink, ServerStream
from shared.net.grpc_wire import is_grpc


class Fork:
    """An acceptor that leads each request to the one that is for its kind."""

    __slots__ = ("_grpc", "_http")

    def __init__(self, grpc: Acceptor, http: Acceptor) -> None:
        self._grpc = grpc
        self._http = http

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        """By the content-type; the owner of the stream, as an acceptor says it."""
        if is_grpc(headers):
            return self._grpc(stream, headers, end)
        return self._http(stream, headers, end)
