"""gRPC calls that reach no node: the list of models, and what is passed on to the private socket."""

from __future__ import annotations

from collections.abc import Callable

from router_node.relay.account import Account
from router_node.relay.headers import GRPC, trailers_only
from shared import headers as names
from shared.errors import Code, LayaError, unavailable
from shared.net.api import Headers, ServerStream, Upstream
from shared.net.grpc_wire import frame
from shared.net.splice import Splice
from shared.net.uploads import stalled_error

MAX_QUESTION = 64 << 10  # bytes of a request whose content does not matter


class ListModels:
    """``Inference.ListModels`` from the router's own table, a ``ServerSink``. The request's message is not read."""

    __slots__ = ("_account", "_answered", "_stream")

    def __init__(self, stream: ServerStream, account: Account) -> None:
        self._stream = stream
        self._account = account
        self._answered = False

    @classmethod
    def answer(cls, stream: ServerStream, account: Account, end: bool) -> ListModels:
        """Own the stream and answer once the request is whole."""
        sink = cls(stream, account)
        if end:
            sink._respond()
        else:
            account.core.uploads.progress(sink, 0)
        return sink

    def on_data(self, data: bytes, end: bool) -> None:
        """Part of the request."""
        account = self._account
        account.bytes_in += len(data)
        self._stream.consumed(len(data))
        if account.bytes_in > MAX_QUESTION and not self._answered:
            error = LayaError(
                Code.INVALID_ARGUMENT, "BODY_TOO_LARGE", f"ListModels takes at most {MAX_QUESTION} bytes."
            )
            self._refuse(error)
        elif end:
            self._respond()

    def on_trailers(self, headers: Headers) -> None:
        """The request's end in another form."""
        self._respond()

    def on_sent(self, n: int) -> None:
        """The answer is small; nothing waits for it."""

    def stalled(self) -> None:
        """The request did not go on in time."""
        self._refuse(stalled_error())

    def crowded_out(self) -> None:
        """Never called: it holds nothing."""

    def on_closed(self, code: int) -> None:
        """The stream is over."""
        if not self._answered:
            self._account.code = int(Code.CANCELLED)
        self._account.core.uploads.end(self)
        self._account.end()

    def _refuse(self, error: LayaError) -> None:
        if not self._answered:
            self._answered = True
            self._account.core.uploads.end(self)
            self._account.failed(error)
            self._stream.respond(trailers_only(error, self._account.request_id), end=True)

    def _respond(self) -> None:
        if self._answered:
            return
        self._answered = True
        account = self._account
        account.core.uploads.end(self)
        body = frame(account.core.table.list_models_grpc())
        account.bytes_out = len(body)
        self._stream.respond([(b":status", b"200"), GRPC, (names.REQUEST_ID, account.request_id)])
        self._stream.send(body)
        self._stream.trailers([(b"grpc-status", b"0")])


class BridgeStream(Splice):
    """A health or reflection call, passed on to the services on the private socket."""

    __slots__ = ("_account", "_on_end")

    def __init__(self, down: ServerStream, account: Account, on_end: Callable[[], None] | None = None) -> None:
        super().__init__(down)
        self._account = account
        self._on_end = on_end

    @classmethod
    def open(
        cls,
        stream: ServerStream,
        account: Account,
        headers: Headers,
        bridge: Upstream,
        end: bool,
        on_end: Callable[[], None] | None = None,
    ) -> BridgeStream:
        """Own the stream and join it to the private socket with these headers; ``on_end`` is called once it is over."""
        relay = cls(stream, account, on_end)
        if not relay.join(bridge, headers, end):
            relay._refuse(_not_up())
        elif not end:
            account.core.uploads.progress(relay, 0)
        return relay

    def on_data(self, data: bytes, end: bool) -> None:
        """A part of the request. One that does not go on must not keep others out: few may pass at once."""
        uploads = self._account.core.uploads
        if end:
            uploads.end(self)
        elif not self.complete:
            uploads.progress(self, 0)
        super().on_data(data, end)

    def on_trailers(self, headers: Headers) -> None:
        """The request's end in another form."""
        self.on_data(b"", True)

    def stalled(self) -> None:
        """The request did not go on in time."""
        self._refuse(stalled_error())

    def crowded_out(self) -> None:
        """Never called: it holds nothing."""

    def _refuse(self, error: LayaError) -> None:
        self._account.core.uploads.end(self)
        if not self.complete:
            self._account.failed(error)
            self.fail(error)

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        """The router's own services ended the call early."""
        self._refuse(_not_up())

    def finished(self, code: int) -> None:
        """The client's stream is over."""
        account = self._account
        account.core.uploads.end(self)
        if self._on_end is not None:
            self._on_end()
        account.bytes_in, account.bytes_out = self.bytes_in, self.bytes_out
        if account.code == 0:
            if not self.complete:
                account.code = int(Code.CANCELLED)
            elif self.grpc_status.isdigit() and len(self.grpc_status) <= 2:
                account.code = int(self.grpc_status)
        account.end()


def _not_up() -> LayaError:
    return unavailable("The router's own services are not up yet; try again.", "NOT_READY", 0.5)
