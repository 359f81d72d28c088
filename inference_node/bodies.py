"""What admission must know of an OpenAI body, and what the node writes into it. Pure functions.

The application behind the tunnel is the engine's own: it validates the body. Read here is only what decides how much KV
a request may take, and written only what a router or the node's defaults say over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from inference_node.call import Call
from inference_node.engines.base import BadRequest
from inference_node.prepare import Caps
from inference_node.sampling import check_max_tokens
from shared.errors import LayaError, invalid

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = "/v1/embeddings"

# Where each route says how many new tokens it wants, the name that wins first.
MAX_TOKENS: Final[dict[str, tuple[str, ...]]] = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
}

_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def parse(raw: bytes) -> dict[str, Any]:
    """The body as an object. Raises LayaError INVALID_ARGUMENT."""
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise invalid(f"The body is not valid JSON: {e}.") from None
    if not isinstance(body, dict):
        raise invalid("The body must be a JSON object.")
    return body


@dataclass(slots=True)
class Plan:
    """A body with the node's word in it; ``changed`` when it must be encoded again."""

    path: str
    body: dict[str, Any]
    changed: bool = False
    max_new_tokens: int = 0
    sequences: int = 1
    priority: int = 0

    def set(self, name: str, value: Any) -> None:
        """Write a key, if it does not say so already."""
        if self.body.get(name) != value:
            self.body[name] = value
            self.changed = True


def model_of(body: dict[str, Any], call: Call) -> str:
    """The model that is asked for: the router's word, else the body's, empty where neither says."""
    if call.rewrite:
        return call.rewrite
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequest("model must be a text", "model")
    return model or ""


def plan(path: str, body: dict[str, Any], call: Call, caps: Caps) -> Plan:
    """Read and clamp a generating body; the default of max_tokens is filled by ``fill_max_tokens`` later.

    Raises BadRequest or LayaError that names the field.
    """
    out = Plan(path, body)
    if call.rewrite:
        out.set("model", call.rewrite)
    clamps = call.clamps
    for name in clamps.bounds.keys() - {"max_tokens", "priority"}:
        value = body.get(name)
        if isinstance(value, bool):
            continue  # chat's ``logprobs``
        if value is not None and not isinstance(value, int | float):
            raise BadRequest(f"{name} must be a number", name)
        clamped = clamps.apply(name, value)
        if clamped is not None:
            out.set(name, clamped)
    if path == EMBEDDINGS:
        return out
    if body.get("stream") and not caps.streaming:
        raise BadRequest("this node answers whole only (inference.enable_streaming is off); leave stream out", "stream")
    n = _whole(body, "n", 1)
    best_of = _whole(body, "best_of", n)
    out.sequences = max(n, best_of)
    if n < 1 or out.sequences > caps.max_n:
        name = "best_of" if best_of > n else "n"
        raise BadRequest(f"{name} is {out.sequences if n >= 1 else n}; it must be 1 to {caps.max_n}", name)
    _plan_max_tokens(out, call, caps)
    _plan_priority(out, call)
    return out


def fill_max_tokens(out: Plan, longest_prompt: int, default: int, max_seq_len: int) -> None:
    """Give a body that names no max_tokens the default, within what the context leaves."""
    if out.max_new_tokens == 0 and out.path != EMBEDDINGS:
        out.max_new_tokens = max(1, min(default, max_seq_len - longest_prompt))
        out.set(MAX_TOKENS[out.path][0], out.max_new_tokens)


def _plan_max_tokens(out: Plan, call: Call, caps: Caps) -> None:
    names = MAX_TOKENS[out.path]
    for name in names:
        value = out.body.get(name)
        if value is not None:
            break
    else:
        name, value = names[0], None
    if value is not None:
        value = _whole(out.body, name, 0)
    clamped = call.clamps.apply("max_tokens", value)
    if clamped is None:
        return
    check_max_tokens(clamped, caps.max_max_tokens, name)
    out.max_new_tokens = clamped
    out.set(name, clamped)


def _plan_priority(out: Plan, call: Call) -> None:
    asked = _whole(out.body, "priority", 0)
    out.priority = call.priority_over(asked)
    if out.priority != asked:
        out.set("priority", out.priority)
    salt = out.body.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise BadRequest("cache_salt must be a text", "cache_salt")
    if salted := call.salt_over(salt or ""):
        out.set("cache_salt", salted)


def _whole(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{name} must be a whole number", name)
    return value


def error_body(error: LayaError) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """An error as status, headers and OpenAI error object."""
    headers = [(b"content-type", b"application/json")]
    retry = error.retry_after_header()
    if retry is not None:
        headers.append((b"retry-after", retry))
    return error.http_status, headers, error.openai_body()
