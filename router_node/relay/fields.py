"""Routing fields that a client puts into metadata, so that nothing of its message need be read.

A malformed value is the client's mistake and is said so at once: a request routed by half of what it asked for would
only fail later and less clearly.
"""

from __future__ import annotations

import binascii
import struct
from typing import Final

from router_node.dispatch import Ask
from shared import headers as names
from shared.errors import LayaError, invalid

MAX_MODEL: Final = 256  # bytes
MAX_SESSION: Final = 256  # bytes
MAX_PREFIXES: Final = 64
MAX_TOKENS: Final = 2**31 - 1
_INT32: Final = 2**31


class Fields(Ask):
    """Where a request wants to go and what it will cost: an Ask while it is being found out.

    ``complete`` says that the message itself need not be read, ``named`` that somebody named a priority, ``streams``
    that an HTTP request asks for its answer token by token. Until the
    caller is known, ``priority`` is what was asked for.
    """

    __slots__ = ("complete", "named", "streams")

    def __init__(self) -> None:
        # Written out rather than by super(): one is made for every request.
        self.model = self.tenant = ""
        self.session = b""
        self.refusals = 0
        self.priority = self.prompt_tokens = self.prompt_bytes = self.max_new_tokens = self.n = 0
        self.exact = self.complete = self.named = self.streams = False
        self.prefix = ()
        self.arrived = 0.0
        self.deadline = None

    def copy(self) -> Fields:
        """The same wishes, for another request."""
        out = Fields()
        out.model, out.session, out.priority, out.n = self.model, self.session, self.priority, self.n
        out.prompt_tokens, out.prompt_bytes = self.prompt_tokens, self.prompt_bytes
        out.max_new_tokens, out.prefix = self.max_new_tokens, self.prefix
        out.exact, out.complete, out.named, out.streams = self.exact, self.complete, self.named, self.streams
        return out


def from_metadata(metadata: dict[bytes, bytes]) -> Fields:
    """Read the ``laya-*`` names that clients set. Raises LayaError INVALID_ARGUMENT for a malformed value."""
    out = Fields()
    get = metadata.get
    named, prompt, limit = get(names.MODEL), get(names.PROMPT_TOKENS), get(names.MAX_TOKENS)
    if named is not None:
        out.model = model(named, "laya-model")
    if prompt is not None:
        if prompt.isdigit() and len(prompt) < 10:  # as count() does, without the call
            out.prompt_tokens = int(prompt)
        else:
            out.prompt_tokens = count(prompt, "laya-prompt-tokens", 0)
    if limit is not None:
        if limit.isdigit() and len(limit) < 10 and limit[0] != 0x30:
            out.max_new_tokens = int(limit)
        else:
            out.max_new_tokens = count(limit, "laya-max-tokens", 1)
        out.complete = bool(named) and prompt is not None
    value = get(names.SESSION)
    if value is not None:
        out.session = value if len(value) <= MAX_SESSION else session(value, "laya-session")
    value = get(names.PRIORITY)
    if value is not None:
        out.priority = priority(value, "laya-priority")
        out.named = True
    value = get(names.PREFIX)
    if value:
        out.prefix = prefixes(value)
    return out


def model(value: bytes, where: str) -> str:
    """A model's name from bytes. Raises INVALID_ARGUMENT when it is over 256 bytes or not UTF-8."""
    if len(value) > MAX_MODEL:
        raise invalid(f"{where} is {len(value)} bytes long: a model's name has at most {MAX_MODEL}.", where)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(f"{where} is not UTF-8: name the model in UTF-8.", where) from None


def session(value: bytes, where: str) -> bytes:
    """A session's name. Raises INVALID_ARGUMENT when it is over 256 bytes."""
    if len(value) > MAX_SESSION:
        raise invalid(f"{where} is {len(value)} bytes long: a session's name has at most {MAX_SESSION}.", where)
    return value


def count(value: bytes, where: str, least: int) -> int:
    """A decimal count of tokens, ``least`` to 2**31 - 1. Raises INVALID_ARGUMENT."""
    if value.isdigit() and len(value) <= 10:
        number = int(value)
        if least <= number <= MAX_TOKENS:
            return number
    raise invalid(f"{where} is {_shown(value)}: it must be a whole number of tokens, {least} or more.", where)


def priority(value: bytes, where: str) -> int:
    """A signed 32-bit decimal. Raises INVALID_ARGUMENT."""
    digits = value[1:] if value[:1] == b"-" else value
    if digits.isdigit() and len(digits) <= 10:
        number = int(value)
        if -_INT32 <= number < _INT32:
            return number
    raise invalid(f"{where} is {_shown(value)}: it must be a whole number, lower for earlier.", where)


def prefixes(value: bytes) -> tuple[int, ...]:
    """Prefix hashes: 16 hex digits each, joined by commas, at most 64. Raises INVALID_ARGUMENT."""
    size = len(value) + 1
    number = size // 17
    if size % 17 == 0 and number <= MAX_PREFIXES and value[16::17] == b"," * (number - 1):
        try:
            raw = binascii.unhexlify(value.replace(b",", b""))
        except binascii.Error:
            raw = b""
        if len(raw) == number * 8:
            return struct.unpack(f">{number}Q", raw)
    raise _bad_prefix()


def _bad_prefix() -> LayaError:
    return invalid(
        f"laya-prefix is malformed: it holds at most {MAX_PREFIXES} hashes of 16 hex digits, joined by commas.",
        "laya-prefix",
    )


def _shown(value: bytes) -> str:
    return repr(value[:24].decode("ascii", "replace"))
