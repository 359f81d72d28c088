"""One call of a load test and what became of it, in a form that goes from process to process."""

from __future__ import annotations

import msgspec

MAX_TEXT = 64 << 10
"""Characters of an answer that are kept for the next turn."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask. A chat where there are messages, else the completion of a prompt. Times are seconds."""

    name: str
    """Row in the statistics."""
    messages: tuple[tuple[str, str], ...] = ()
    """Role and content, oldest first."""
    prompt: str = ""
    max_tokens: int = 64
    ignore_eos: bool = False
    session: str = ""
    priority: int = 0
    key: str = ""
    """API key; empty sends none."""
    schema: str = ""
    """JSON schema that the answer must follow."""
    choices: tuple[str, ...] = ()
    """Answers of which it must be one."""
    leave_after: int = 0
    """Tokens after which the client goes away; 0: it stays."""
    read_delay: float = 0.0
    """Pause after each message."""
    pause: float = 0.0
    """Time to think before the call is made."""
    keep_text: bool = False
    timeout: float = 120.0
    lane: int = 0
    """Calls of one lane share a connection, as those of one client do."""

    @property
    def size(self) -> int:
        """Bytes of the prompt."""
        return len(self.prompt.encode()) + sum(len(content.encode()) for _, content in self.messages)


class Outcome(msgspec.Struct):
    """What came back. Times are seconds from the start of the call, 0 for what never came."""

    reason: str = ""
    """Empty for success, else the error's reason (``ErrorInfo.reason``), or the kind of the failure."""
    detail: str = ""
    first: float = 0.0
    """To the first token."""
    last: float = 0.0
    """To the last token."""
    total: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    left: bool = False
    """The client went away, as it was meant to."""

    @property
    def ok(self) -> bool:
        """Answered, or left on purpose."""
        return not self.reason

    @property
    def unreachable(self) -> bool:
        """Nothing answered at all."""
        return self.reason == UNREACHABLE

    def token(self, at: float, count: int, text: str, keep: bool) -> None:
        """So many tokens have come."""
        self.first = self.first or at
        self.last = at
        self.tokens += count
        if keep and len(self.text) < MAX_TEXT:
            self.text += text

    @property
    def itl(self) -> float:
        """Mean time between two tokens, 0 where there were fewer than two."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 and self.first else 0.0


UNREACHABLE = "UNREACHABLE"
CUT_OFF = "CUT_OFF"
CARRIER_LOST = "CARRIER_LOST"
"""The process that makes the gRPC calls has ended."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """To the process that makes the calls: make this one."""

    number: int
    call: Call


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """To the process that makes the calls: give this one up."""

    number: int


class Said(msgspec.Struct, frozen=True):
    """From that process: the outcome of a call."""

    number: int
    outcome: Outcome
