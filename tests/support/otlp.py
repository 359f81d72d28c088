"""A collector in the test's own process: it takes OTLP over HTTP or gRPC on a port of its own and keeps the spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc

SERVER, CLIENT, INTERNAL = 2, 3, 1  # kinds, as OTLP numbers them


@dataclass
class Seen:
    """One span as it came."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    state: str
    error: bool
    attributes: dict[str, Any]
    events: list[str]


@dataclass
class Collector:
    """``endpoint`` is for ``tracing.endpoint``. ``status`` is what HTTP exports are answered."""

    endpoint: str
    status: int = 200
    spans: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def take(self, request: pb.ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        """Keep an export."""
        self.headers.append(headers)
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans += [_seen(service, span) for span in scope.spans]

    def wait(self, enough: Callable[[list[Seen]], bool], seconds: float = 20.0) -> list[Seen]:
        """The spans, once there are enough of them."""
        deadline = time.monotonic() + seconds
        while not enough(self.spans):
            assert time.monotonic() < deadline, [(s.service, s.name) for s in self.spans]
            time.sleep(0.02)
        return list(self.spans)


def _values(attributes: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind) if kind else None
        if kind == "array_value":
            value = [getattr(v, v.WhichOneof("value")) for v in one.value.array_value.values]
        out[one.key] = value
    return out


def _seen(service: str, span: Any) -> Seen:
    return Seen(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.trace_state,
        span.status.code == 2,
        _values(span.attributes),
        [event.name for event in span.events],
    )


@contextmanager
def http_collector() -> Iterator[Collector]:
    """OTLP over HTTP with protobuf."""
    collector = Collector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.status == 200 and self.path == "/v1/traces":
                request = pb.ExportTraceServiceRequest.FromString(body)
                collector.take(request, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(collector.status if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """OTLP over gRPC."""
    collector = Collector("")

    class Service(rpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> pb.ExportTraceServiceResponse:
            collector.take(request, {name: str(value) for name, value in context.invocation_metadata()})
            return pb.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        server.stop(1.0).wait(5)
