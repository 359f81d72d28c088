"""Joins a stream that a client opened on us with one that we opened on a node, with end-to-end flow control.

Bytes are acknowledged on one side as they leave on the other, so a client that stops reading stops its node, and the
other way round, with at most a stream window in between. Orderings that need care, and what happens:

* the answer is complete while the client still sends: it is delivered, then the server stream ends the request;
* the client resets or vanishes: the node's stream is reset with CANCEL in the same batch;
* the node's stream is lost: ``upstream_lost`` decides; by default the client hears UNAVAILABLE, by trailers also when
  a part of the answer has been sent, because a bare reset would leave it without a reason;
* the node did not see the request: what the client sent is kept (up to 64 KiB) until the node's first sign of
  life, so it can be sent to another.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from shared.errors import LayaError, unavailable
from shared.net.api import CANCEL, NO_ERROR, ClientStream, Headers, ServerStream, Upstream
from shared.net.gather import Piece, gather

REPLAY_BYTES: Final = 64 << 10  # request bytes kept for another try
GRPC_HEAD: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]


@mypyc_attr(allow_interpreted_subclasses=True)
class Splice:
    """One relayed call, the ``ServerSink`` of its one stream and the ``ClientSink`` of the other.

    It may be made, and fed by the client, before it is joined to an upstream.
    Subclass and override the hooks. Attributes to read: ``bytes_in`` (request bytes from the client), ``bytes_out``
    (response bytes from the node), ``responded`` (headers have gone to the client), ``complete`` (the whole response
    has been handed over, or an error instead), ``grpc_status`` (of the trailers; empty until then).
    """

    __slots__ = (
        "_early",
        "_early_bytes",
        "_early_trailers",
        "_granted",
        "_left",
        "_result",
        "bytes_in",
        "bytes_out",
        "complete",
        "down",
        "grpc_status",
        "request_ended",
        "responded",
        "up",
    )

    def __init__(self, down: ServerStream) -> None:
        self.down = down
        self.up: ClientStream | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.responded = False
        self.complete = False
        self.request_ended = False
        self.grpc_status = b""
        self._early: list[Piece] | None = []  # the request so far, while it may have to be sent (again)
        self._early_bytes = 0
        self._early_trailers: Headers | None = None
        self._granted = 0  # request bytes acknowledged to the client
        self._left = 0  # request bytes that left for the node of this try
        self._result = -1  # code with which the client's stream ended

    # What the owner asks for.

    @property
    def can_replay(self) -> bool:
        """Whether ``join`` may be called (again): the node got nothing, or all of the request so far is kept."""
        return self.up is None and self._early is not None and not self.complete

    def join(self, upstream: Upstream, headers: Headers, end: bool = False) -> bool:
        """Open the node's stream and send it what has come; False when the upstream cannot take it now.

        ``end``: the request is known to have no body. May be called again from ``upstream_lost`` or later, if
        ``can_replay``; the request is then sent from its start.
        """
        if end:
            self.request_ended = True
        early = self._early
        if early is None or self.up is not None:
            raise RuntimeError("a splice can be joined only while it has no upstream and the whole request is kept")
        ended = self.request_ended
        trailers = self._early_trailers
        bare = ended and not early and trailers is None
        up = upstream.open(headers, self, bare)
        if up is None:
            return False
        self.up = up
        self._left = 0
        if early or trailers is not None:
            last = len(early) - 1
            for i, data in enumerate(early):
                up.send(bytes(data), ended and trailers is None and i == last)
            if trailers is not None:
                up.trailers(trailers)
        return True

    def early_data(self) -> list[Piece]:
        """The request bytes that have come so far; only before ``join``, or while ``can_replay``."""
        return self._early if self._early is not None else []

    def ask_more(self, n: int) -> None:
        """Let the client send n more bytes than have been taken, to see more of the request before ``join``."""
        self._granted += n
        self.down.consumed(n)

    def fail(self, error: LayaError) -> None:
        """Answer the client with an error: trailers-only, or trailers after what has been sent. Resets the node's."""
        if self.complete or self._result >= 0:
            return
        self.complete = True
        self._early = None
        self.grpc_status = b"%d" % error.code
        trailers = error.grpc_trailers()
        if self.responded:
            self.down.trailers(trailers)
        else:
            self.responded = True
            self.down.respond([*GRPC_HEAD, *trailers], end=True)
        if self.up is not None:
            self.up.reset(CANCEL)

    # Hooks.

    def filter_response(self, headers: Headers) -> Headers:
        """Response headers for the client; called with the node's first header block.

        The list is the splice's own: change it in place and return it, and it is not checked again (see fields.py).
        """
        return headers

    def filter_trailers(self, headers: Headers) -> Headers:
        """Trailers for the client; of a trailers-only answer too, after ``filter_response``."""
        return headers

    def first_byte(self) -> None:
        """The first bytes of the node's answer are about to go to the client."""

    def ended_bare(self, data: bytes) -> None:
        """The node's answer ends with these bytes and has no trailers: no status, for a gRPC call."""
        self.complete = True
        self.down.send(data, True)

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        """The node's stream ended before its answer was complete, and the client is still there.

        ``code`` is the reset code, 8 (CANCEL) when the connection died. ``unprocessed``: the node never saw the
        request. Either ``join`` another upstream, now or later (``can_replay``), or ``fail``; this answers UNAVAILABLE.
        """
        self.fail(lost_error(code, unprocessed))

    def upstream_closed(self) -> None:
        """The node's stream is over, and ``upstream_lost`` was not called for it."""

    def finished(self, code: int) -> None:
        """Both streams are over: 0, or the code that ended the client's. The last call on this object."""

    # The client's stream.

    def on_data(self, data: bytes, end: bool) -> None:
        """Request bytes: to the node, or kept until there is one."""
        self.bytes_in += len(data)
        if end:
            self.request_ended = True
        early = self._early
        up = self.up
        if early is not None:
            if up is not None and self._early_bytes + len(data) > REPLAY_BYTES:
                self._early = None
            else:
                gather(early, data)
                self._early_bytes += len(data)
        if up is not None:
            up.send(data, end)

    def on_trailers(self, headers: Headers) -> None:
        """Request trailers end the request."""
        self.request_ended = True
        self._early_trailers = headers
        if self.up is not None:
            self.up.trailers(headers)

    def on_sent(self, n: int) -> None:
        """Response bytes left for the client: the node may send as many more."""
        up = self.up
        if up is not None:
            up.consumed(n)

    def on_closed(self, code: int) -> None:
        """The client's stream is over; the node's has no purpose any more."""
        self._result = code
        self._early = None
        up = self.up
        if up is None:
            self.finished(code)
        else:
            up.reset(NO_ERROR if self.complete else CANCEL)

    # The node's stream.

    def on_response(self, headers: Headers, end: bool) -> None:
        """Response headers; all of a trailers-only answer."""
        self._early = None
        headers = self.filter_response(headers)
        if end:
            self._take_status(headers)
            headers = self.filter_trailers(headers)
            self.complete = True
        self.responded = True
        self.down.respond(headers, end)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Response bytes go on untouched."""
        if not self.bytes_out:
            self.first_byte()
        self.bytes_out += len(data)
        if end:
            self.ended_bare(data)
        else:
            self.down.send(data)

    def on_response_trailers(self, headers: Headers) -> None:
        """Trailers complete the answer."""
        self.complete = True
        self._take_status(headers)
        self.down.trailers(self.filter_trailers(headers))

    def on_request_sent(self, n: int) -> None:
        """Request bytes left for the node: the client may send as many more."""
        self._left = left = self._left + n
        more = left - self._granted
        if more > 0:  # not so while bytes leave that were asked for early, or that are sent again
            self._granted = left
            self.down.consumed(more)

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The node's stream is over."""
        self.up = None
        if self.complete or self._result >= 0:
            self.upstream_closed()
            if self._result >= 0:
                self.finished(self._result)
        else:
            self.upstream_lost(code, unprocessed)

    def _take_status(self, headers: Headers) -> None:
        for name, value in headers:
            if name == b"grpc-status":
                self.grpc_status = value
                return


def lost_error(code: int, unprocessed: bool) -> LayaError:
    """What a client hears when its node is gone."""
    if unprocessed:
        return unavailable("The node did not take the request; try again.", "NODE_LOST")
    return unavailable(
        f"The node's answer broke off (HTTP/2 code {code}) before it was complete; try again.", "NODE_LOST"
    )
