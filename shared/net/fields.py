"""Header fields that may go out.

The engine writes whatever it is given, a line break in a value included, and refuses whole streams over a trailing
space. So nothing is given to it unchecked. A block that came in from a peer was checked by the engine already: it
travels as ``CheckedHeaders``, and an owner that only drops or adds fields it knows to be good hands it on as such.
Any other list is checked on its way out; that costs about a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

Header = tuple[bytes, bytes]

# Connection-specific fields (RFC 9113, section 8.2.2); they have no meaning beyond one HTTP/1.1 connection.
HOP_BY_HOP: Final = frozenset(
    (b"connection", b"http2-settings", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)

_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+\Z").match
_FORBIDDEN = re.compile(rb"[\x00\r\n]")


class CheckedHeaders(list[Header]):
    """Header fields that are known to be legal in HTTP/2. Make it with ``checked``, or from another one's fields."""

    __slots__ = ()


def checked(headers: Iterable[Header]) -> CheckedHeaders:
    """The fields in the form in which they may go out.

    Names become lower case; hop-by-hop fields, ``te`` other than ``trailers`` and impossible names are dropped;
    NUL, CR and LF in values become spaces, and spaces around values go.
    """
    out = CheckedHeaders()
    for name, value in headers:
        if not _NAME(name):
            name = name.lower()
            if not _NAME(name):
                continue
        if name in HOP_BY_HOP or (name == b"te" and value != b"trailers"):
            continue
        if 10 in value or 13 in value or 0 in value:  # LF, CR, NUL; a look for bytes objects would cost five times that
            value = _FORBIDDEN.sub(b" ", value)
        if value[:1] in _BLANK or value[-1:] in _BLANK:
            value = value.strip(b" \t")
        out.append((name, value))
    return out


_BLANK: Final = frozenset((b" ", b"\t"))


def header_list_size(headers: Iterable[Header]) -> int:
    """Size of a block as HTTP/2 counts it (RFC 9113, section 6.5.2): 32 bytes a field on top of its text."""
    return sum([len(name) + len(value) + 32 for name, value in headers])
