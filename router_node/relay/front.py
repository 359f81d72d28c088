"""Where gRPC calls of the public port come in: who may call what, and who answers it."""

from __future__ import annotations

from typing import Final

from router_node.middleware.keys import OPEN_CALLER
from router_node.relay.account import Account
from router_node.relay.core import RelayCore
from router_node.relay.fields import from_metadata
from router_node.relay.headers import check_path, trailers_only
from router_node.relay.heads import Head, Heads
from router_node.relay.local import BridgeStream, ListModels
from router_node.relay.methods import LIST_MODELS_PATH, METHODS, Method, check_caps
from router_node.relay.moving_stream import MovingStream
from router_node.relay.relay_stream import RelayStream
from router_node.relay.wary_stream import WaryStream
from shared import headers as names
from shared.errors import Code, LayaError, exhausted
from shared.ids import sane_request_id
from shared.net.api import Headers, ServerSink, ServerStream, Upstream
from shared.net.fields import CheckedHeaders

# Answered by the services on the private socket. Probes have no key to send; reflection needs one.
HEALTH: Final = b"/grpc.health.v1.Health/"
WATCH: Final = HEALTH + b"Watch"
MAX_WATCHES: Final = 32  # of the calls that may pass at once: those who watch for ever must leave room for probes
REFLECTION: Final = (b"/grpc.reflection.v1alpha.ServerReflection/", b"/grpc.reflection.v1.ServerReflection/")
# Never on the public port, whoever asks.
PRIVATE: Final = (b"/laya.v1.Node/", b"/laya.v1.Admin/")
OTHER: Final = "other"
# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_OPEN_CALLER: Final = OPEN_CALLER
_REQUEST_ID: Final = names.REQUEST_ID


class RelayFront:
    """The acceptor of gRPC calls."""

    __slots__ = ("_bridge", "_core", "_heads", "_most", "_watches")

    def __init__(self, core: RelayCore, bridge: Upstream | None = None) -> None:
        self._core = core
        self._bridge = bridge
        self._heads = Heads()
        self._watches = 0
        self._most = core.settings.max_n * core.settings.max_max_tokens

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        """Take a new stream, or answer it with an error at once."""
        core = self._core
        since = core.clock()
        account = Account(core, "grpc", OTHER, stream.peer, since)
        relay: RelayStream | None = None
        try:
            head = self._heads.find(stream.peer, headers)
            fields = head.fields if head is not None else core.rules.check(headers)
            asked = fields.get(_REQUEST_ID)
            account.request_id = asked if asked is not None and sane_request_id(asked) else core.ids.next()
            account.headers = fields
            if core.tracer is not None:
                core.tracer.begin(account, fields)
            method = head.method if head is not None else METHODS.get(fields.get(b":path", b""))
            if method is None:
                check_path(fields.get(b":path", b""))
                return self._other(stream, account, headers, fields, end)
            account.method = method.label
            keys = core.authorizer
            account.caller = _OPEN_CALLER if keys.open else keys.authorize(fields.get(b"authorization"))
            if head is None:
                head = self._read(stream.peer, headers, fields, method)
            moves = core.migrations
            if moves is None:
                relay = RelayStream(stream, account, fields, head.forward, method, head.ask())
            elif method.streams:
                relay = MovingStream(stream, account, fields, head.forward, method, head.ask(), moves)
            else:
                relay = WaryStream(stream, account, fields, head.forward, method, head.ask(), moves)
            relay.begin(end, since)
            return relay
        except LayaError as error:
            if relay is not None:
                relay.refuse(error)
                return relay
            self._refuse(stream, account, error)
            return None
        except Exception as error:
            failure = core.defect(error, account.request_id)
            if relay is not None:
                relay.refuse(failure)
                return relay
            self._refuse(stream, account, failure)
            return None

    def _read(self, peer: str, headers: Headers, fields: dict[bytes, bytes], method: Method) -> Head:
        """What a checked head asks for, kept for the client's next call. Raises LayaError."""
        core = self._core
        ask = from_metadata(fields)
        if ask.max_new_tokens > self._most:
            check_caps(ask, core.settings)
        head = Head(headers, fields, method, core.rules.forward(headers, fields), ask)
        self._heads.keep(peer, head)
        return head

    def _other(
        self, stream: ServerStream, account: Account, headers: Headers, fields: dict[bytes, bytes], end: bool
    ) -> ServerSink:
        """Paths that no node serves."""
        core, path, key = self._core, fields[b":path"], fields.get(b"authorization")
        if path == LIST_MODELS_PATH:
            account.method = "ListModels"
            account.caller = core.authorizer.authorize(key)
            return ListModels.answer(stream, account, end)
        if path.startswith(HEALTH):
            return self._bridged(stream, account, headers, fields, end)
        if path.startswith(REFLECTION):
            account.caller = core.authorizer.authorize(key)
            return self._bridged(stream, account, headers, fields, end)
        shown = path.decode("ascii", "replace")
        if path.startswith(PRIVATE):
            raise LayaError(
                Code.PERMISSION_DENIED,
                "METHOD_UNKNOWN",
                f"{shown} is not served on the public port: Admin is on the router's private address, Node on nodes.",
            )
        raise LayaError(Code.UNIMPLEMENTED, "METHOD_UNKNOWN", f"The method {shown} does not exist here.")

    def _bridged(
        self, stream: ServerStream, account: Account, headers: Headers, fields: dict[bytes, bytes], end: bool
    ) -> ServerSink:
        if self._bridge is None:
            raise LayaError(Code.UNIMPLEMENTED, "METHOD_UNKNOWN", "This router serves neither health nor reflection.")
        opening = CheckedHeaders(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"localhost"),
                (b":path", fields[b":path"]),
                (b"te", b"trailers"),
                (b"content-type", fields[b"content-type"]),
                *self._core.rules.forward(headers, fields),
            ]
        )
        if fields[b":path"] != WATCH:
            return BridgeStream.open(stream, account, opening, self._bridge, end)
        if self._watches >= MAX_WATCHES:
            raise exhausted(f"{MAX_WATCHES} health watches are open already; use Check.", "QUEUE_FULL", 1.0)
        self._watches += 1
        return BridgeStream.open(stream, account, opening, self._bridge, end, self._watch_ended)

    def _watch_ended(self) -> None:
        self._watches -= 1

    def _refuse(self, stream: ServerStream, account: Account, error: LayaError) -> None:
        account.failed(error)
        stream.respond(trailers_only(error, account.request_id), end=True)
        account.end()
