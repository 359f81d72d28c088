"""The protobuf wire format, as far as a reader or writer that knows a few fields needs it.

Offsets run over one ``bytes`` object; nothing is copied. ``Malformed`` says that the bytes are no protobuf message;
running off the end of the buffer shows as IndexError in the callers' own reads, which they treat alike.
"""

from __future__ import annotations

from typing import Final

VARINT = 0
FIXED64 = 1
LENGTH = 2
START_GROUP = 3
END_GROUP = 4
FIXED32 = 5

_MAX_GROUP_DEPTH = 100  # protobuf's own recursion limit
_LONG_VARINT = "a varint is longer than ten bytes"
_MAX_LENGTH = 0x7FFF_FFFF


class Malformed(Exception):
    """The bytes are not a protobuf message; the text says what is wrong with them."""


def put_varint(value: int) -> bytes:
    """A varint of a non-negative value."""
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = tuple(bytes((value,)) for value in range(0x80))


def varint(buf: bytes, pos: int) -> tuple[int, int]:
    """The varint at ``pos`` modulo 2**64, and the offset after it. More than ten bytes are malformed."""
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, pos
        shift += 7
        if shift > 63:
            raise Malformed(_LONG_VARINT)


def tag(buf: bytes, pos: int) -> tuple[int, int]:
    """The field tag (number << 3 | wire type) at ``pos``, and the offset after it."""
    start = pos
    value, pos = varint(buf, pos)
    if pos - start > 5 or value > 0xFFFF_FFFF:
        raise Malformed("a field tag is longer than 32 bits")
    if value < 8:
        raise Malformed("field number 0 does not exist")
    return value, pos


def length(buf: bytes, pos: int) -> tuple[int, int]:
    """The length prefix at ``pos`` in bytes, and the offset after it."""
    size, pos = varint(buf, pos)
    if size > _MAX_LENGTH:
        raise Malformed("a length is over 2 GiB")
    return size, pos


def skip(buf: bytes, pos: int, end: int, key: int) -> int:
    """The offset after the value of the field with tag ``key``, which must end at or before ``end``."""
    kind = key & 7
    if kind == VARINT:
        limit = pos + 10
        while buf[pos] >= 0x80:
            pos += 1
        pos += 1
        if pos > limit:
            raise Malformed(_LONG_VARINT)
    elif kind == LENGTH:
        size = buf[pos]
        pos += 1
        if size >= 0x80:
            size, pos = length(buf, pos - 1)
        pos += size
    elif kind == FIXED32:
        pos += 4
    elif kind == FIXED64:
        pos += 8
    elif kind == START_GROUP:
        pos = _skip_group(buf, pos, end, key)
    else:
        raise Malformed("a group ends that never began" if kind == END_GROUP else f"wire type {kind} does not exist")
    if pos > end:
        raise Malformed("a field runs past the end of its message")
    return pos


def _skip_group(buf: bytes, pos: int, end: int, key: int) -> int:
    """Skip a group (and groups in it) up to its own end tag."""
    open_fields = [key >> 3]
    while open_fields:
        if pos >= end:
            raise Malformed("a group never ends")
        key, pos = tag(buf, pos)
        number, kind = key >> 3, key & 7
        if kind == START_GROUP:
            open_fields.append(number)
            if len(open_fields) > _MAX_GROUP_DEPTH:
                raise Malformed("groups are nested too deeply")
        elif kind == END_GROUP:
            if open_fields.pop() != number:
                raise Malformed("a group ends that never began")
        else:
            pos = skip(buf, pos, end, key)
    return pos
