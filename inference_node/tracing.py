"""The node's spans of a sampled request.

::

    chat smollm2          SERVER   arrival to the last token, below the router's relay span
      ├ queue                      arrival to admission, reading the prompt included
      ├ prefill                    admission to the first token, the engine's own queue included
      ├ decode                     the first token to the last
      └ serialise                  making messages and handing them on: a sum, drawn at the end of decode

What a request is refused for before it asks for admission has no span here; the router's says it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from inference_node.call import Call
from shared.config import Config
from shared.errors import LayaError
from shared.ids import default_node_id
from shared.tracing import span as say
from shared.tracing.context import Context, Sampler
from shared.tracing.exporter import Exporter
from shared.tracing.span import Value
from shared.tracing.trace import RequestTrace

if TYPE_CHECKING:
    from inference_node.prepare import Job


class Tracing:
    """One node's, where an endpoint is configured."""

    def __init__(self, config: Config, node_id: str) -> None:
        """Raises ConfigError for a file that cannot be read or a package that is not installed."""
        settings = config.tracing
        self.exporter = Exporter(settings, "laya-node", node_id or default_node_id(os.getpid()))
        self._sampler = Sampler(settings.sample_ratio, settings.parent_based)

    def begin(self, call: Call, arrived: float, now: float) -> Trace | None:
        """A trace of the call if it is sampled; what comes from a router begins no trace here. By the door's clock."""
        context = self._sampler.begin(call.traceparent, call.tracestate, rooted=not call.dispatch)
        return Trace(context, self.exporter, call.request_id, arrived, now) if context is not None else None


class Trace(RequestTrace):
    """One sampled request; times are the door's clock, in seconds."""

    __slots__ = ("_arrived", "_attributes", "_name", "_reasons")

    def __init__(self, context: Context, exporter: Exporter, request_id: str, arrived: float, now: float) -> None:
        super().__init__(context, exporter, now)
        self._arrived = arrived
        self._name = "request"
        self._reasons: list[str] = []
        self._attributes: dict[str, Value] = {say.RESPONSE_ID: request_id, "laya.request_id": request_id}

    @property
    def header(self) -> bytes:
        """The ``traceparent`` of whoever works for the request below this span: an engine's own application."""
        return self._context.header(self._context.span_id)

    def about(self, method: str, model: str, max_tokens: int = 0, choices: int = 1) -> None:
        """What is asked for, by a method of ``OPERATIONS``."""
        operation = say.OPERATIONS.get(method, "")
        self._name = f"{operation} {model}".strip()
        self._attributes |= {
            say.OPERATION: operation,
            say.PROVIDER: "laya",
            say.REQUEST_MODEL: model,
            say.RESPONSE_MODEL: model,
        }
        if max_tokens:
            self._attributes[say.MAX_TOKENS] = max_tokens
        if choices > 1:
            self._attributes[say.CHOICES] = choices

    def typed(self, service: str, job: Job) -> None:
        """What a request of the typed service asks for."""
        sampling = job.generate.sampling
        self.about(service.capitalize(), job.model, sampling.max_tokens, sampling.n)
        self._attributes[say.STREAM] = service != "complete"
        for name, value in (
            (say.TEMPERATURE, sampling.temperature),
            (say.TOP_P, sampling.top_p),
            (say.TOP_K, sampling.top_k),
            (say.SEED, sampling.seed),
        ):
            if value is not None:
                self._attributes[name] = value

    def used(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Tokens of the prompts, and those of them that were cached."""
        self._attributes[say.INPUT_TOKENS] = prompt_tokens
        if cached_tokens:
            self._attributes[say.CACHED_TOKENS] = cached_tokens

    def generated(self, tokens: int) -> None:
        """New tokens in all; not known of what the engine's own application answers."""
        self._attributes[say.OUTPUT_TOKENS] = tokens

    def finished(self, reason: str) -> None:
        """A completion ended for this reason."""
        self._reasons.append(reason)

    def ended(self, admitted: float, first: float, serialising: float, now: float, error: BaseException | None) -> None:
        """The request is over: hand its spans to the exporter. A time of 0 was not reached."""
        if self._reasons:
            self._attributes[say.FINISH_REASONS] = tuple(self._reasons)
        if first:
            self._attributes[say.FIRST_CHUNK] = first - self._arrived
        failed = _failure(error)
        if failed:
            self._attributes[say.ERROR_TYPE] = failed
        fault = failed if failed != "cancelled" else ""
        root = self._root(self._name, self._arrived, now, self._attributes, [], fault)
        spans = [root, self._child("queue", self._arrived, admitted or now)]
        if admitted:
            spans.append(self._child("prefill", admitted, first or now))
        if first:
            spans.append(self._child("decode", first, now))
            spread = self._child("serialise", max(first, now - serialising), now)
            spread.attributes["laya.sum"] = True
            spans.append(spread)
        self._exporter.add(spans)


def _failure(error: BaseException | None) -> str:
    """A word for why a request failed, empty when it did not."""
    if error is None:
        return ""
    if isinstance(error, LayaError):
        return error.reason or error.code.name
    return "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else type(error).__name__
