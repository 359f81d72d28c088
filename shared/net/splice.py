"""Joins a stream that a client opened on us with one that we opened on a node, with end-to-end flow control."""

from __future__ import annotations

from shared.errors import LayaError
from shared.net.api import ClientSink, Headers, ServerSink, ServerStream, Upstream


class Splice(ServerSink, ClientSink):
    """One relayed call. It may be made, and fed by the client, before it is joined to an upstream.

    Subclass and override the hooks; each is called at most once unless it says otherwise. Attributes to read:
    ``bytes_in`` (request bytes from the client), ``bytes_out`` (response bytes from the node), ``responded``
    (headers went to the client), ``complete`` (the whole response has been handed over), ``grpc_status`` (bytes).
    """

    __slots__ = ()

    def __init__(self, down: ServerStream) -> None:
        raise NotImplementedError

    def join(self, upstream: Upstream, headers: Headers, end: bool) -> bool:
        """Open the node's stream and send it what has been buffered; False when the upstream cannot take it now.

        ``end``: the request has no body. Also used to try again after ``upstream_lost(unprocessed=True)``: the
        request is sent again from its start when ``can_replay`` says so.
        """
        raise NotImplementedError

    def fail(self, error: LayaError) -> None:
        """Answer the client with an error: trailers-only, or trailers after what has been sent."""
        raise NotImplementedError

    # Hooks.

    def filter_response(self, headers: Headers) -> Headers:
        """Response headers for the client; called with the node's first header block."""
        return headers

    def filter_trailers(self, headers: Headers) -> Headers:
        """Trailers for the client (also those of a trailers-only answer, after filter_response)."""
        return headers

    def first_byte(self) -> None:
        """The first response bytes of the node's body are about to go to the client."""

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        """The node's stream ended before its response was complete. The default answers UNAVAILABLE."""

    def upstream_closed(self) -> None:
        """The node's stream is over, well or badly, and will not be tried again."""

    def finished(self, code: int) -> None:
        """The client's stream is over: 0 or the reset code. The last call on this object."""
