"""The router's spans of a sampled request.

::

    chat smollm2                 SERVER   arrival to the last byte for the client
      ├ route                             arrival to a node chosen, or to a place in the queue
      ├ queue                             where it had to wait for a node with room
      └ relay                    CLIENT   a node chosen to the end of its answer; one for each node that was tried
          └ (the node's own span)

A request that is not sampled has no ``Trace`` and pays for the look at its ``traceparent``; where tracing is off there
is no ``Tracer`` either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from router_node.relay.track import Track
from shared import headers as names
from shared.config import Config
from shared.errors import Code
from shared.ids import default_node_id
from shared.net.api import Headers
from shared.tracing import span as say
from shared.tracing.context import Context, Sampler, new_id
from shared.tracing.exporter import Exporter
from shared.tracing.span import Event, Span, Value
from shared.tracing.trace import RequestTrace

if TYPE_CHECKING:
    from router_node.relay.account import Account

MAX_ATTEMPTS: Final = 16  # relay spans of one request
MAX_EVENTS: Final = 32
_CODES: Final = {int(code): code.name for code in Code}
# A server's span is an error where the fault is the server's.
_FAULTS: Final = frozenset(
    int(code) for code in (Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE)
)


class Tracer:
    """Decides which requests are traced; one for each process that serves the public port."""

    __slots__ = ("_exporter", "_sampler")

    def __init__(self, sampler: Sampler, exporter: Exporter) -> None:
        self._sampler = sampler
        self._exporter = exporter

    def begin(self, account: Account, headers: Mapping[bytes, bytes]) -> None:
        """Give the account a trace, if its request is sampled. ``headers`` are the client's."""
        context = self._sampler.begin(headers.get(names.TRACEPARENT), headers.get(names.TRACESTATE))
        if context is None:
            return
        if account.track is None:
            account.track = Track(False)
        account.track.trace = Trace(context, self._exporter, account.core.clock())


class Tracing:
    """The parts of one process's tracing, where an endpoint is configured: who decides, and who sends."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError for a file that cannot be read or a package that is not installed."""
        settings = config.tracing
        self.exporter = Exporter(settings, "laya-router", default_node_id(os.getpid()))
        self.tracer = Tracer(Sampler(settings.sample_ratio, settings.parent_based), self.exporter)


class Trace(RequestTrace):
    """One sampled request. Times are the core's clock, in seconds."""

    __slots__ = ("_decided_at", "_events", "_open", "_relay_id", "_spans")

    def __init__(self, context: Context, exporter: Exporter, now: float) -> None:
        super().__init__(context, exporter, now)
        self._decided_at = 0.0
        self._spans: list[Span] = []
        self._events: list[Event] = []
        self._relay_id = 0
        self._open: Span | None = None  # the relay span of the node that is tried now

    def forwarded(self, forward: Headers) -> Headers:
        """The headers that pass to a node: it continues the trace below a relay span that begins here."""
        self._relay_id = new_id()
        context = self._context
        known = (names.TRACEPARENT,) if context.parent_id else (names.TRACEPARENT, names.TRACESTATE)
        out = [pair for pair in forward if pair[0] not in known]
        out.append((names.TRACEPARENT, context.header(self._relay_id)))
        return out

    def decided(self, now: float) -> None:
        """The first decision of the dispatcher: a node, or a place in the queue."""
        if self._decided_at == 0.0:
            self._decided_at = now

    def waited(self, since: float, now: float) -> None:
        """The request stood in the queue."""
        self._spans.append(self._child("queue", since, now))

    def sent(self, chosen: float, node: str) -> None:
        """A node is tried; it was chosen at this time."""
        self._close(chosen, "retried")
        relay = self._child("relay", chosen, chosen)
        relay.span_id = self._relay_id or relay.span_id
        relay.kind = say.CLIENT
        relay.attributes["laya.node"] = node
        self._open = relay

    def event(self, name: str, facts: Mapping[str, Value], now: float) -> None:
        """Something worth knowing happened to the request, as an event of its own span."""
        if len(self._events) < MAX_EVENTS:
            self._events.append(Event(name, self._ns(now), dict(facts)))

    def ended(self, account: Account, track: Track, now: float) -> None:
        """The request is over: hand its spans to the exporter."""
        operation = say.OPERATIONS.get(account.method)
        if operation is None:
            return  # probes, the list of models
        failed = self._fault(account)
        if self._open is not None and track.answered_at:
            self._open.events.append(Event("first_byte", self._ns(track.answered_at), {}))
        self._close(now, failed)
        if self._decided_at:
            self._spans.append(self._child("route", account.started, self._decided_at))
        name = f"{operation} {account.model}".rstrip()
        root = self._root(name, account.started, now, _attributes(account, operation), self._events, failed)
        self._exporter.add([root, *self._spans])

    def _close(self, now: float, error: str) -> None:
        relay, self._open = self._open, None
        if relay is not None and len(self._spans) < MAX_ATTEMPTS:
            relay.end = self._ns(now)
            relay.error = error
            self._spans.append(relay)

    @staticmethod
    def _fault(account: Account) -> str:
        code = account.code
        fault = code >= 500 if code >= 100 else code in _FAULTS
        return (account.reason or _CODES.get(code, str(code))) if fault else ""


def _attributes(account: Account, operation: str) -> dict[str, Value]:
    """What is known of a request: names and numbers."""
    code = account.code
    out: dict[str, Value] = {
        say.OPERATION: operation,
        say.PROVIDER: "laya",
        "laya.request_id": account.request_id.decode("ascii", "replace"),
        "laya.attempts": account.attempts,
        "laya.router.work_us": int(max(0.0, account.routed) * 1e6),
        "laya.bytes_in": account.bytes_in,
        "laya.bytes_out": account.bytes_out,
    }
    if account.model:
        out[say.REQUEST_MODEL] = account.model
    if account.node_id:
        out["laya.node"] = account.node_id
    if account.plan is not None:
        out["laya.route"] = account.plan.tag.decode("ascii", "replace")
    if account.protocol == "grpc":
        out["rpc.system"] = "grpc"
        out["rpc.service"] = "laya.v1.Inference"
        out["rpc.method"] = account.method
        out["rpc.grpc.status_code"] = code
    else:
        out["http.request.method"] = "POST"
        out["http.route"] = account.method
        out["http.response.status_code"] = code
    if account.reason or (code and code != 200):
        out[say.ERROR_TYPE] = account.reason or _CODES.get(code, str(code))
    return out
