"""The constants that canned nodes and canned HTTP backends answer with, and the time stamps that measure delay."""

from __future__ import annotations

import json
import re
import time

TEXT = "canned " * 25
DONE = b"data: [DONE]\n\n"
_DIGITS = 20
_MARK = b"0" * _DIGITS
_STAMP = re.compile(rb"t(\d{%d})" % _DIGITS)
TAIL = _DIGITS  # bytes at the end of what has come that may be the beginning of a stamp


class Stamped:
    """A message that carries the time it was sent at; its length never changes."""

    __slots__ = ("_after", "_before")

    TEXT = "t" + _MARK.decode()

    def __init__(self, template: bytes) -> None:
        """``template`` holds ``Stamped.TEXT`` once."""
        self._before, self._after = template.split(_MARK)

    def now(self) -> bytes:
        """The message with this moment in it."""
        return b"%b%020d%b" % (self._before, time.monotonic_ns(), self._after)


def stamps(data: bytes) -> tuple[list[float], int]:
    """Seconds since each stamped message in ``data`` was sent, and where the last of them ends."""
    now = time.monotonic_ns()
    end = 0
    delays = []
    for found in _STAMP.finditer(data):
        delays.append((now - int(found[1])) / 1e9)
        end = found.end()
    return delays, end


def chat_body(model: str) -> bytes:
    """A whole chat completion as the OpenAI API gives it."""
    body = {
        "id": "chatcmpl-canned",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "system_fingerprint": "canned",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 16, "completion_tokens": 25, "total_tokens": 41},
    }
    return json.dumps(body).encode()


def sse_event(model: str, text: str) -> bytes:
    """One event of a streamed chat completion."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    delta = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": model, "choices": [choice]}
    return b"data: " + json.dumps(delta).encode() + b"\n\n"


def wants_stream(body: bytes) -> bool:
    """Whether a chat request asks for a stream."""
    return b'"stream":true' in body.replace(b" ", b"")
