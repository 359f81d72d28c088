"""Whether a header block that a peer sent may be believed (RFC 9113, section 8.2 and 8.3).

``h2`` ends the whole connection over a malformed block when it is asked to look; here it costs its stream alone. One
thing is forgiven: space around a value, which grpcio's servers send at the end of a ``grpc-message``; it is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from shared.net.fields import HOP_BY_HOP, Header

Kind = Literal["request", "response", "trailers"]

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+\Z").match
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search
_STATUS = re.compile(rb"[1-9][0-9][0-9]\Z").match
_PSEUDO: Final = {
    "request": frozenset((b":method", b":scheme", b":path", b":authority")),
    "response": frozenset((b":status",)),
    "trailers": frozenset[bytes](),
}
_BLANK: Final = b" \t"


def believed(headers: Iterable[Header], kind: Kind) -> tuple[Header, ...] | None:
    """The block as it may go on, values trimmed; None when it is malformed."""
    allowed = _PSEUDO[kind]
    pseudo: dict[bytes, bytes] = {}
    out: list[Header] = []
    plain = False
    for name, value in headers:
        if _CONTROL(value):
            return None
        if value[:1] in _ENDS or value[-1:] in _ENDS:
            value = value.strip(_BLANK)
        if name[:1] == b":":
            if plain or name not in allowed or name in pseudo:
                return None
            pseudo[name] = value
        else:
            plain = True
            if not _NAME(name) or name in HOP_BY_HOP or (name == b"te" and value.lower() != b"trailers"):
                return None
        out.append((name, value))
    if kind == "request":
        return tuple(out) if _asks(pseudo) else None
    if kind == "response" and not _STATUS(pseudo.get(b":status", b"")):
        return None
    return tuple(out)


def _asks(pseudo: dict[bytes, bytes]) -> bool:
    """Whether the pseudo-header fields name something that can be asked for."""
    method = pseudo.get(b":method", b"")
    if not method or (b":authority" in pseudo and not _plain_text(pseudo[b":authority"])):
        return False
    if method == b"CONNECT":
        return b":authority" in pseudo and len(pseudo) == 2
    path = pseudo.get(b":path", b"")
    if not pseudo.get(b":scheme") or not _plain_text(path):
        return False
    return path[:1] == b"/" or (path == b"*" and method == b"OPTIONS")


def _plain_text(value: bytes) -> bool:
    return b" " not in value and b"\t" not in value


_ENDS: Final = frozenset((b" ", b"\t"))
