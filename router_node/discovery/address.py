"""``host:port`` as people write it, IPv6 in brackets."""

from __future__ import annotations

import re

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._\-]{0,252}[A-Za-z0-9.])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._\-]{1,16})?")


class AddressError(ValueError):
    """Not host:port; the message reads on from the address's name."""


def split_address(address: str) -> tuple[str, int]:
    """Host (without brackets) and port of ``host:port``. Raises AddressError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= 65535:
        raise AddressError(f"must be host:port with a port from 1 to 65535, not {address[:80]!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ok = _IPV6.fullmatch(host) is not None
    else:
        ok = _HOST.fullmatch(host) is not None
    if not ok:
        raise AddressError(f"must be host:port with a plain host name or address, not {address[:80]!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """True for a host that only this machine can reach."""
    return host in ("localhost", "::1", "[::1]") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None
