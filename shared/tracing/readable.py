"""Our spans as OpenTelemetry's, for its exporters. Imported by the exporting thread only."""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from shared.tracing.span import CLIENT, INTERNAL, SERVER, Span

_KINDS: Final = {INTERNAL: SpanKind.INTERNAL, SERVER: SpanKind.SERVER, CLIENT: SpanKind.CLIENT}


def readable(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """The same span in OpenTelemetry's form."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    state = TraceState.from_header([span.state]) if span.state else None
    parent = None
    if span.parent_id:
        parent = SpanContext(span.trace_id, span.parent_id, span.kind == SERVER, flags, state)
    return ReadableSpan(
        name=span.name,
        context=SpanContext(span.trace_id, span.span_id, False, flags, state),
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, event.attributes, event.at) for event in span.events],
        kind=_KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=scope,
    )
