"""Reads from an OpenAI request's JSON what the router needs, and leaves the rest to the engine.

One pass of msgspec over the bytes checks that they are JSON, that the few fields below have their types and bounds,
and finds where the prompt lies; nothing else is built. Errors name the field, in OpenAI's form.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from router_node.relay.body_fields import BodyFields, decode
from router_node.relay.fields import MAX_MODEL, Fields
from router_node.relay.settings import RelaySettings
from shared.errors import Code, LayaError, invalid
from shared.prefix import BLOCK_BYTES, PREFIX_BYTES, hash_blocks

_MEDIA_BYTES: Final = 4096  # what one inline image or sound counts for in the prompt's length
_decode: Final = decode
_FIELD = re.compile(r"\$\.(\w+)").search
_INT32: Final = 2**31


def peek(body: bytes, into: Fields, settings: RelaySettings) -> None:
    """Complete the fields with what a request body says; what metadata or headers named stays.

    Raises LayaError INVALID_ARGUMENT that names the field that is wrong or missing.
    """
    try:
        found = _decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", None) from None
    model = found.model
    if not model:
        raise invalid("The field 'model' is missing: name the model to use; GET /v1/models lists them.", "model")
    if len(model) > MAX_MODEL:
        raise invalid(f"The field 'model' is {len(model)} characters long: at most {MAX_MODEL} are allowed.", "model")
    if not into.model:
        into.model = model
    into.streams = found.stream is True
    n = found.n
    if n is None:
        n = 1
    elif not 1 <= n <= settings.max_n:
        raise _out_of_bounds("n", n, settings.max_n)
    if found.best_of is not None:
        if not 1 <= found.best_of <= settings.max_n:
            raise _out_of_bounds("best_of", found.best_of, settings.max_n)
        n = max(n, found.best_of)
    into.n = n
    limit = _limit(found, settings.max_max_tokens)
    if limit is not None and not into.max_new_tokens:
        into.max_new_tokens = limit * n
    if found.priority is not None and not into.named:
        if not -_INT32 <= found.priority < _INT32:
            raise invalid("The field 'priority' must fit into 32 bits.", "priority")
        into.priority = found.priority
    _prompt(found, into)


def _limit(found: BodyFields, most: int) -> int | None:
    """The new tokens asked for; the newer name wins over the older, as in the engine."""
    limit = found.max_tokens
    if limit is not None and not 1 <= limit <= most:
        raise _out_of_bounds("max_tokens", limit, most)
    if found.max_output_tokens is not None:
        limit = found.max_output_tokens
        if not 1 <= limit <= most:
            raise _out_of_bounds("max_output_tokens", limit, most)
    if found.max_completion_tokens is not None:
        limit = found.max_completion_tokens
        if not 1 <= limit <= most:
            raise _out_of_bounds("max_completion_tokens", limit, most)
    return limit


def _out_of_bounds(name: str, value: int, most: int) -> LayaError:
    shown = str(value) if -_INT32 <= value < _INT32 else "far too large" if value > 0 else "far too small"
    return invalid(f"The field '{name}' is {shown}: it must be 1 to {most}.", name)


def _prompt(found: BodyFields, into: Fields) -> None:
    # Only one of the first three is there in a sane request. The engine judges the rest.
    raw: msgspec.Raw = found.messages or found.prompt or found.input
    if not raw:
        into.prompt_bytes = len(memoryview(found.query)) + len(memoryview(found.documents))
        return
    view = memoryview(raw)
    size = len(view)
    into.prompt_bytes = size if size <= PREFIX_BYTES else size - _media(bytes(view))
    if size >= BLOCK_BYTES and not into.prefix:
        into.prefix = hash_blocks(view[:PREFIX_BYTES])


def _media(raw: bytes) -> int:
    """Bytes by which inline images and sounds overstate a prompt: their base64 is no text."""
    surplus = 0
    at = raw.find(b";base64,")
    while at >= 0:
        end = raw.find(b'"', at)
        if end < 0:
            break
        surplus += max(0, end - at - _MEDIA_BYTES)
        at = raw.find(b";base64,", end)
    return surplus


def _wrong_type(text: str) -> LayaError:
    """msgspec says ``Expected `int`, got `str` - at `$.max_tokens```; say it as a sentence with the field's name."""
    what, _, where = text.partition(" - at ")
    match = _FIELD(where)
    if match is None:
        return invalid(f"The body must be a JSON object: {what[:1].lower()}{what[1:]}.", None)
    field = match.group(1)
    return LayaError(
        Code.INVALID_ARGUMENT,
        "INVALID_REQUEST",
        f"The field '{field}' has the wrong type: {what[:1].lower()}{what[1:].replace(' | null', '')}.",
        param=field,
    )
