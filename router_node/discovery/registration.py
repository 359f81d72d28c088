"""What a node writes into the store about itself, signed with the cluster token. Pure: no I/O, no clock.

A record is ``hex(HMAC-SHA256) + "\\n" + JSON``. The signature covers the cluster's name, so a record of one cluster
means nothing in another, and the node's id is checked against the key it was found under, so that it cannot be moved.
Someone who can write to the store but does not know the token can neither add a node nor redirect one. Without a
token (loopback only) the signature is no more than a checksum.

Layout: ``laya:{cluster}:node:{node_id}`` holds the record and expires after its ``ttl``; the set
``laya:{cluster}:nodes`` lists the ids, so that nobody scans the store; a message on ``laya:{cluster}:events`` says
"look now" and carries no data.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

import msgspec

from router_node.discovery.address import AddressError, split_address
from shared import version

PROTOCOL: Final = version.PROTOCOL  # of protos/laya/v1/node.proto
MAX_RECORD: Final = 8192  # bytes
MAX_ALIASES: Final = 64
MAX_SKEW: Final = 30.0  # seconds that two machines' clocks may differ
MAX_TTL: Final = 3600.0  # seconds

# Reasons a record is refused; they label a metric, so the set is closed.
REASONS: Final = ("oversize", "garbage", "foreign", "moved", "invalid", "untrusted", "expired", "future")

_SIGNATURE = 64  # hex digits
_CONTEXT = b"laya registration 1\0"
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,63}")


class RecordError(Exception):
    """A record that must not be used; ``reason`` is one of ``REASONS``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A node's statement of where it is and what it serves.

    ``address`` is the host:port that routers dial. ``issued_at`` is in seconds since the epoch, ``ttl`` in seconds.
    Unknown fields are ignored, so that a newer node can say more.
    """

    node_id: str
    boot_id: str
    address: str
    model: str
    aliases: tuple[str, ...] = ()
    revision: str = ""
    protocol: int = PROTOCOL
    issued_at: float
    ttl: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Registration).decode


def valid_node_id(node_id: str) -> bool:
    """True for 1 to 128 letters, digits and ``. _ : -``, beginning with a letter or digit."""
    return _NODE_ID.fullmatch(node_id) is not None


def valid_cluster(cluster: str) -> bool:
    """True for 1 to 64 letters, digits and ``. _ -``, beginning with a letter or digit."""
    return _CLUSTER.fullmatch(cluster) is not None


def node_key(cluster: str, node_id: str) -> str:
    """Key that holds a node's record."""
    return f"laya:{cluster}:node:{node_id}"


def index_key(cluster: str) -> str:
    """Key of the set of node ids."""
    return f"laya:{cluster}:nodes"


def events_channel(cluster: str) -> str:
    """Channel on which a change is announced."""
    return f"laya:{cluster}:events"


def sign(record: Registration, cluster: str, token: bytes) -> bytes:
    """The bytes to store for a record. Raises RecordError when no router would accept them."""
    check(record)
    payload = _encode(record)
    if len(payload) + _SIGNATURE + 1 > MAX_RECORD:
        raise RecordError("oversize", f"the registration is over {MAX_RECORD} bytes; shorten its names and aliases")
    return _signature(payload, cluster, token) + b"\n" + payload


def verify(raw: bytes, node_id: str, cluster: str, token: bytes, now: float) -> Registration:
    """The record stored for ``node_id``, once everything about it is right; ``now`` is seconds since the epoch.

    Raises RecordError with the reason. The signature is checked before anything is parsed, in constant time.
    """
    if len(raw) > MAX_RECORD:
        raise RecordError("oversize", f"a registration of {len(raw)} bytes is over {MAX_RECORD}")
    if len(raw) <= _SIGNATURE or raw[_SIGNATURE] != 0x0A:
        raise RecordError("garbage", "not a registration")
    payload = raw[_SIGNATURE + 1 :]
    if not hmac.compare_digest(raw[:_SIGNATURE], _signature(payload, cluster, token)):
        raise RecordError("foreign", "signed with another cluster token or for another cluster")
    try:
        record = _decode(payload)
    except msgspec.DecodeError as error:
        raise RecordError("garbage", f"not a registration: {error}") from None
    if record.node_id != node_id:
        raise RecordError("moved", "the record was found under another node's key")
    check(record)
    if record.issued_at > now + MAX_SKEW:
        raise RecordError("future", f"issued {record.issued_at - now:.0f} s in the future; check the machines' clocks")
    if now > record.issued_at + record.ttl + MAX_SKEW:
        raise RecordError("expired", f"issued {now - record.issued_at:.0f} s ago and good for {record.ttl:.0f} s")
    return record


def check(record: Registration) -> None:
    """Raise RecordError("invalid") for a field that makes no sense."""
    if not valid_node_id(record.node_id):
        raise RecordError("invalid", "node_id must be 1 to 128 letters, digits and . _ : -")
    if not valid_node_id(record.boot_id):
        raise RecordError("invalid", "boot_id must be 1 to 128 letters, digits and . _ : -")
    try:
        split_address(record.address)
    except AddressError as error:
        raise RecordError("invalid", f"address {error}") from None
    if len(record.aliases) > MAX_ALIASES:
        raise RecordError("invalid", f"at most {MAX_ALIASES} aliases")
    if not record.model or not all(_plain(name) for name in (record.model, *record.aliases)):
        raise RecordError("invalid", "model and aliases must be printable names of 1 to 256 characters")
    if len(record.revision) > 256:
        raise RecordError("invalid", "revision must be 256 characters or fewer")
    if not 0 < record.ttl <= MAX_TTL:
        raise RecordError("invalid", f"ttl must be over 0 and at most {MAX_TTL:.0f} seconds")


def _plain(name: str) -> bool:
    return 0 < len(name) <= 256 and name.isprintable()


def _signature(payload: bytes, cluster: str, token: bytes) -> bytes:
    message = b"%s%s\0%s" % (_CONTEXT, cluster.encode(), payload)
    return hmac.digest(token, message, hashlib.sha256).hex().encode()
