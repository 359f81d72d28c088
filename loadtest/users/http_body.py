"""The OpenAI API's side of a call: its body and headers, and the events of its answer. No I/O."""

from __future__ import annotations

import json
from typing import Any

from loadtest.users.call import CUT_OFF, Call, Outcome


def path(call: Call) -> str:
    """Where it goes."""
    return "/v1/chat/completions" if call.messages else "/v1/completions"


def headers(call: Call) -> dict[str, str]:
    """With key, session, priority and deadline."""
    out = {"content-type": "application/json", "laya-timeout-ms": str(max(1, round(call.timeout * 1e3)))}
    if call.key:
        out["authorization"] = f"Bearer {call.key}"
    if call.session:
        out["laya-session"] = call.session
    if call.priority:
        out["laya-priority"] = str(call.priority)
    return out


def body(call: Call, model: str) -> bytes:
    """As JSON; always a stream that ends with its usage."""
    out: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": call.max_tokens,
    }
    if call.messages:
        out["messages"] = [{"role": role, "content": content} for role, content in call.messages]
    else:
        out["prompt"] = call.prompt
    if call.ignore_eos:
        out["ignore_eos"] = True
    if call.priority:
        out["priority"] = call.priority
    if call.schema:
        form = {"name": "answer", "schema": json.loads(call.schema)}
        out["response_format"] = {"type": "json_schema", "json_schema": form}
    elif call.choices:
        out["structured_outputs"] = {"choice": list(call.choices)}
    return json.dumps(out).encode()


class Events:
    """Takes an answer's lines as they come. ``done`` once nothing more is wanted."""

    __slots__ = ("_call", "_out", "done")

    def __init__(self, call: Call, out: Outcome) -> None:
        self._call, self._out = call, out
        self.done = False

    def line(self, line: bytes, at: float) -> bool:
        """A line that came at this time; whether it was an event with text in it."""
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return False
        try:
            event = json.loads(data)
            return self._event(event, at)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            self._out.reason, self._out.detail = "NO_EVENT", data[:200].decode("utf-8", "replace")
            self.done = True
            return False

    def _event(self, event: dict[str, Any], at: float) -> bool:
        out = self._out
        if "error" in event:
            out.reason, out.detail = _reason(event["error"])
            self.done = True
            return False
        text = ""
        for choice in event.get("choices", ()):
            text += (choice["delta"].get("content") if "delta" in choice else choice.get("text")) or ""
        if text:
            out.token(at, 1, text, self._call.keep_text)
            if self._call.leave_after and out.tokens >= self._call.leave_after:
                out.left = self.done = True
        usage = event.get("usage")
        if usage:
            # An event may hold several tokens: the count that the server gives is the true one.
            out.tokens = usage["completion_tokens"]
            out.prompt_tokens = usage["prompt_tokens"]
            out.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return bool(text)

    def ended(self) -> None:
        """The answer has ended; without its mark it was cut off."""
        if not self.done and self._out.ok:
            self._out.reason = CUT_OFF


def refusal(status: int, raw: bytes, out: Outcome) -> None:
    """An answer with another status than 200."""
    try:
        out.reason, out.detail = _reason(json.loads(raw)["error"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        out.reason, out.detail = f"HTTP_{status}", raw[:200].decode("utf-8", "replace")


def _reason(error: dict[str, Any]) -> tuple[str, str]:
    return str(error.get("code") or error.get("type") or "ERROR").upper(), str(error.get("message", ""))
