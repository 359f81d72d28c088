"""A finished span as plain data, and the names of what Laya says in one.

Attribute names follow OpenTelemetry's conventions for generative AI where these have one; ours begin with ``laya.``.
No prompt, no answer, no key and no session's name is ever in a span.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

Value = str | int | float | bool | tuple[str, ...]

INTERNAL: Final = 0
SERVER: Final = 1
CLIENT: Final = 2

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
CHOICES: Final = "gen_ai.request.choice.count"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
TOP_K: Final = "gen_ai.request.top_k"
SEED: Final = "gen_ai.request.seed"
STREAM: Final = "gen_ai.request.stream"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE: Final = "error.type"

# By the label that a method has in metrics: a gRPC method's name, an HTTP path.
OPERATIONS: Final = {
    "Generate": "text_completion",
    "Complete": "text_completion",
    "Chat": "chat",
    "Embed": "embeddings",
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}


@dataclass(slots=True)
class Event:
    """Something that happened at a moment, in nanoseconds since the epoch."""

    name: str
    at: int
    attributes: dict[str, Value]


@dataclass(slots=True)
class Span:
    """Times are nanoseconds since the epoch. ``error`` is why it failed, empty where it did not."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    end: int
    kind: int = INTERNAL
    attributes: dict[str, Value] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    error: str = ""
    state: str = ""
