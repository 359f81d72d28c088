"""Reads the routing fields out of a first request message whose metadata did not name them.

Protobuf promises no field order and lets a later value replace an earlier one, so the whole message is walked once:
top-level fields and the sampling parameters are read, everything else is stepped over by its length. The walk costs a
few microseconds and makes no objects per field. It accepts whatever protobuf accepts (and a little more: text is not
checked for UTF-8, nested messages it has no use for are not opened); what it reads equals what protobuf would read.
"""

from __future__ import annotations

from typing import Final

from router_node.relay import wire
from router_node.relay.wire import Malformed

PREFIX_BYTES: Final = 32 << 10  # prompt bytes kept for prefix hashing

_NONE, _TEXT, _IDS, _MESSAGES = range(4)
_HIGH_BYTES: Final = bytes(range(0x80, 0x100))


class Scan:
    """What a request message says about where it should run.

    ``max_tokens`` and ``n`` are None where the message leaves them out. ``prompt`` holds the first ``PREFIX_BYTES`` of
    the prompt: its text, its packed token ids, or its serialized chat messages one after the other.
    """

    __slots__ = ("_kind", "_parts", "_room", "_token_ids", "max_tokens", "model", "n", "priority", "prompt_bytes")

    def __init__(self) -> None:
        self.model = b""
        self.max_tokens: int | None = None
        self.n: int | None = None
        self.priority = 0
        self.prompt_bytes = 0
        self._kind = _NONE
        self._parts: list[bytes] = []
        self._room = PREFIX_BYTES
        self._token_ids = 0

    @property
    def prompt(self) -> bytes:
        """The head of the prompt, for prefix hashing."""
        parts = self._parts
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def token_ids(self) -> int | None:
        """How many token ids the prompt has; None when it is text."""
        return self._token_ids if self._kind == _IDS else None

    def _become(self, kind: int) -> None:
        """The prompt is a oneof: another member drops what was there."""
        self._kind = kind
        self._parts = []
        self._room = PREFIX_BYTES
        self._token_ids = self.prompt_bytes = 0

    def _add(self, buf: bytes, pos: int, stop: int) -> None:
        self.prompt_bytes += stop - pos
        room = self._room
        if room:
            cut = stop if stop - pos <= room else pos + room
            self._parts.append(buf[pos:cut])
            self._room = room - (cut - pos)


def scan_generate(message: bytes) -> Scan:
    """Read a ``GenerateRequest``. Raises Malformed."""
    return _run(_generate, message)


def scan_complete(message: bytes) -> Scan:
    """Read a ``CompleteRequest``. Raises Malformed."""
    return _run(_complete, message)


def scan_chat(message: bytes) -> Scan:
    """Read a ``ChatRequest``. Raises Malformed."""
    return _run(_chat, message)


def scan_embed(message: bytes) -> Scan:
    """Read an ``EmbedRequest``. Raises Malformed."""
    return _run(_embed, message)


def scan_http(message: bytes) -> tuple[bytes, bytes, bytes]:
    """Method, target and body of an ``HttpRequest``. Raises Malformed."""
    method = target = body = b""
    pos, end = 0, len(message)
    try:
        while pos < end:
            key, pos = wire.tag(message, pos)
            if key in (0x0A, 0x12, 0x22):
                size, pos = wire.length(message, pos)
                stop = pos + size
                if stop > end:
                    raise Malformed("a field runs past the end of its message")
                value = message[pos:stop]
                pos = stop
                if key == 0x0A:
                    method = value
                elif key == 0x12:
                    target = value
                else:
                    body = value
            else:
                pos = wire.skip(message, pos, end, key)
    except IndexError:
        raise Malformed("the message is cut short") from None
    return method, target, body


def _run(walk: object, message: bytes) -> Scan:
    out = Scan()
    try:
        walk(message, 0, len(message), out)  # type: ignore[operator]
    except IndexError:
        raise Malformed("the message is cut short") from None
    return out


def _generate(buf: bytes, pos: int, end: int, out: Scan) -> None:
    while pos < end:
        key = buf[pos]
        pos += 1
        if key >= 0x80 or key < 8:
            key, pos = wire.tag(buf, pos - 1)
        if key & 7 != wire.LENGTH:
            if key == 0x30:  # priority
                value, pos = wire.varint(buf, pos)
                out.priority = wire.int32(value)
                if pos > end:
                    raise Malformed("a field runs past the end of its message")
            else:
                pos = wire.skip(buf, pos, end, key)
            continue
        size = buf[pos]
        pos += 1
        if size >= 0x80:
            size, pos = wire.length(buf, pos - 1)
        stop = pos + size
        if stop > end:
            raise Malformed("a field runs past the end of its message")
        if key == 0x0A:  # model
            out.model = buf[pos:stop]
        elif key == 0x12:  # text
            out._become(_TEXT)
            out._add(buf, pos, stop)
        elif key == 0x22:  # sampling
            _sampling(buf, pos, stop, out)
        elif key == 0x42:  # messages
            if out._kind != _MESSAGES:
                out._become(_MESSAGES)
            _chat_messages(buf, pos, stop, out)
        elif key == 0x1A:  # token_ids
            if out._kind != _IDS:
                out._become(_IDS)
            _token_ids(buf, pos, stop, out)
        pos = stop


def _complete(buf: bytes, pos: int, end: int, out: Scan) -> None:
    while pos < end:
        key, pos = wire.tag(buf, pos)
        if key == 0x0A:  # request; a second one merges into the first, as walking on does
            size, pos = wire.length(buf, pos)
            stop = pos + size
            if stop > end:
                raise Malformed("a field runs past the end of its message")
            _generate(buf, pos, stop, out)
            pos = stop
        else:
            pos = wire.skip(buf, pos, end, key)


def _chat(buf: bytes, pos: int, end: int, out: Scan) -> None:
    out._kind = _MESSAGES
    while pos < end:
        key = buf[pos]
        pos += 1
        if key >= 0x80 or key < 8:
            key, pos = wire.tag(buf, pos - 1)
        if key & 7 != wire.LENGTH:
            if key == 0x28:  # priority
                value, pos = wire.varint(buf, pos)
                out.priority = wire.int32(value)
                if pos > end:
                    raise Malformed("a field runs past the end of its message")
            else:
                pos = wire.skip(buf, pos, end, key)
            continue
        size = buf[pos]
        pos += 1
        if size >= 0x80:
            size, pos = wire.length(buf, pos - 1)
        stop = pos + size
        if stop > end:
            raise Malformed("a field runs past the end of its message")
        if key == 0x12:  # messages
            out._add(buf, pos, stop)
        elif key == 0x0A:  # model
            out.model = buf[pos:stop]
        elif key == 0x1A:  # sampling
            _sampling(buf, pos, stop, out)
        pos = stop


def _embed(buf: bytes, pos: int, end: int, out: Scan) -> None:
    out._kind = _TEXT
    while pos < end:
        key, pos = wire.tag(buf, pos)
        if key == 0x0A or key == 0x12:  # model, inputs
            size, pos = wire.length(buf, pos)
            stop = pos + size
            if stop > end:
                raise Malformed("a field runs past the end of its message")
            if key == 0x0A:
                out.model = buf[pos:stop]
            else:
                out.prompt_bytes += size
            pos = stop
        elif key == 0x20:  # priority
            value, pos = wire.varint(buf, pos)
            out.priority = wire.int32(value)
            if pos > end:
                raise Malformed("a field runs past the end of its message")
        else:
            pos = wire.skip(buf, pos, end, key)


def _sampling(buf: bytes, pos: int, end: int, out: Scan) -> None:
    while pos < end:
        key = buf[pos]
        pos += 1
        if key >= 0x80 or key < 8:
            key, pos = wire.tag(buf, pos - 1)
        if key == 0x08 or key == 0x50:  # max_tokens, n
            value = buf[pos]
            pos += 1
            if value >= 0x80:
                value, pos = wire.varint(buf, pos - 1)
                value &= 0xFFFF_FFFF
            if key == 0x08:
                out.max_tokens = value
            else:
                out.n = value
        elif key & 7 == wire.FIXED32:
            pos += 4
        else:
            pos = wire.skip(buf, pos, end, key)
        if pos > end:
            raise Malformed("a field runs past the end of its message")


def _chat_messages(buf: bytes, pos: int, end: int, out: Scan) -> None:
    while pos < end:
        key, pos = wire.tag(buf, pos)
        if key == 0x0A:  # messages
            size, pos = wire.length(buf, pos)
            stop = pos + size
            if stop > end:
                raise Malformed("a field runs past the end of its message")
            out._add(buf, pos, stop)
            pos = stop
        else:
            pos = wire.skip(buf, pos, end, key)


def _token_ids(buf: bytes, pos: int, end: int, out: Scan) -> None:
    while pos < end:
        key, pos = wire.tag(buf, pos)
        start = pos
        pos = wire.skip(buf, pos, end, key)
        if key == 0x08:  # one id, not packed
            out._token_ids += 1
            out._add(buf, start, pos)
        elif key == 0x0A:  # packed ids: as many as there are bytes without the continuation bit
            start = wire.length(buf, start)[1]
            packed = buf[start:pos]
            if packed and packed[-1] >= 0x80:
                raise Malformed("a token id is cut short")
            out._token_ids += len(packed.translate(None, _HIGH_BYTES))
            out._add(buf, start, pos)
