"""The fields of an OpenAI request that decide where it runs, out of its JSON in one pass."""

from __future__ import annotations

from typing import Final

import msgspec

_EMPTY: Final = msgspec.Raw(b"")


class BodyFields(msgspec.Struct):
    """What of a body the router reads; the prompt is one of the raw ones."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    priority: int | None = None
    messages: msgspec.Raw = _EMPTY
    prompt: msgspec.Raw = _EMPTY
    input: msgspec.Raw = _EMPTY
    query: msgspec.Raw = _EMPTY
    documents: msgspec.Raw = _EMPTY


decode: Final = msgspec.json.Decoder(BodyFields).decode
"""Raises msgspec.ValidationError, DecodeError and RecursionError."""
