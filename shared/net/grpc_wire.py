"""What gRPC puts on top of HTTP/2: message frames, time limits, status trailers, binary metadata.

Pure functions and one incremental parser: nothing here touches a stream, so every rule is tested by calling it.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Final

from shared.errors import Code, LayaError, invalid, percent_decode
from shared.net.api import Headers

CONTENT_TYPE: Final = b"application/grpc"
ENCODINGS: Final = b"identity,deflate,gzip"  # what a Deframer can read, as grpc-accept-encoding says it

_PREFIX = 5  # compression flag, then the length in four bytes, big endian
_MAX_LENGTH = 0xFFFFFFFF
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}


def frame(message: bytes, compressed: bool = False) -> bytes:
    """One length-prefixed message, ready for DATA."""
    return (b"\1" if compressed else b"\0") + len(message).to_bytes(4, "big") + message


class Deframer:
    """Cuts the bytes of one direction of a stream into messages, and inflates those that are compressed.

    ``max_size`` bounds a message in bytes, before and after inflation, and with it what is held here. ``encoding`` is
    the stream's ``grpc-encoding``. After an error the stream is of no further use.
    """

    __slots__ = ("_bits", "_encoding", "_held", "_max", "_need")

    def __init__(self, max_size: int, encoding: bytes = b"identity") -> None:
        """Raise LayaError UNIMPLEMENTED for an encoding that is not in ENCODINGS."""
        self._bits = 0
        if encoding != b"identity":
            bits = _WINDOW_BITS.get(encoding)
            if bits is None:
                shown = encoding[:64].decode("ascii", "replace")
                raise LayaError(
                    Code.UNIMPLEMENTED,
                    "INVALID_REQUEST",
                    f"Messages are compressed with {shown!r}, which is not supported: use gzip, deflate or identity.",
                )
            self._bits = bits
        self._encoding = encoding
        self._max = max_size
        self._held = bytearray()
        self._need = _PREFIX

    @property
    def pending(self) -> int:
        """Bytes held of a message that is not complete; 0 at a message boundary."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes, in order.

        Raises LayaError: RESOURCE_EXHAUSTED for a message over ``max_size``, INVALID_ARGUMENT for a broken frame.
        """
        held = self._held
        if held:
            held += data
            if len(held) < self._need:
                return []
            data = bytes(held)
            held.clear()
        out: list[bytes] = []
        at = 0
        size = len(data)
        need = _PREFIX
        while (left := size - at) >= _PREFIX:
            need = _PREFIX + int.from_bytes(data[at + 1 : at + _PREFIX], "big")
            if need > self._max + _PREFIX or data[at]:
                self._check(data[at], need - _PREFIX)
            if left < need:
                break
            body = data[at + _PREFIX : at + need]
            out.append(self._inflate(body) if data[at] else body)
            at += need
            need = _PREFIX
        if left:
            held += data[at:] if at else data
            self._need = need
        return out

    def finish(self) -> None:
        """Raise LayaError INVALID_ARGUMENT when the stream ends inside a message."""
        if self._held:
            raise invalid("The stream ended in the middle of a message: send whole length-prefixed messages.")

    def _check(self, flag: int, size: int) -> None:
        if size > self._max:
            raise self._too_large(f"{size} bytes")
        if flag > 1:
            raise invalid(f"A message begins with compression flag {flag}: only 0 and 1 are defined.")
        if flag and not self._bits:
            raise invalid("A message is marked as compressed, but the stream declares no grpc-encoding.")

    def _inflate(self, body: bytes) -> bytes:
        machine = zlib.decompressobj(self._bits)
        try:
            out = machine.decompress(body, self._max + 1)
        except zlib.error:
            raise invalid(f"A message is not valid {self._encoding.decode()} data.") from None
        if len(out) > self._max:
            raise self._too_large("more")
        if not machine.eof or machine.unused_data:
            raise invalid(f"A message is not one complete {self._encoding.decode()} stream.")
        return out

    def _too_large(self, size: str) -> LayaError:
        return LayaError(
            Code.RESOURCE_EXHAUSTED,
            "BODY_TOO_LARGE",
            f"A message is limited to {self._max} bytes and this one has {size}: send less, or raise the limit.",
            http_status=413,
        )


# Finest first, so that a value keeps as much of its precision as eight digits allow.
_UNITS: tuple[tuple[bytes, float], ...] = (
    (b"n", 1e-9),
    (b"u", 1e-6),
    (b"m", 1e-3),
    (b"S", 1.0),
    (b"M", 60.0),
    (b"H", 3600.0),
)
_UNIT_SECONDS = {unit[0]: seconds for unit, seconds in _UNITS}
_MAX_DIGITS = 8


def parse_timeout(value: bytes) -> float:
    """Seconds of a ``grpc-timeout``. Raises LayaError INVALID_ARGUMENT when it is malformed."""
    seconds = _UNIT_SECONDS.get(value[-1]) if value else None
    digits = value[:-1]
    if seconds is None or not digits.isdigit() or len(digits) > _MAX_DIGITS:
        shown = value[:32].decode("ascii", "replace")
        raise invalid(
            f"grpc-timeout {shown!r} is malformed: use at most 8 digits and one of H M S m u n.", "grpc-timeout"
        )
    return int(digits) * seconds


def format_timeout(seconds: float) -> bytes:
    """A ``grpc-timeout`` of at most ``seconds``, in the finest unit that fits; 0 or less becomes ``0n``."""
    if seconds <= 0:
        return b"0n"
    for unit, size in _UNITS:
        count = seconds / size
        if count < 10**_MAX_DIGITS:
            return b"%d%b" % (int(count), unit)
    return b"99999999H"


def is_grpc(headers: Headers) -> bool:
    """Whether a request's content-type says gRPC, in any of its message formats."""
    for name, value in headers:
        if name == b"content-type":
            return is_grpc_type(value)
    return False


def is_grpc_type(value: bytes) -> bool:
    """``application/grpc``, alone or followed by ``+format`` or ``;parameters``; not ``application/grpc-web``."""
    if value == CONTENT_TYPE:
        return True
    head = value[:16].lower()
    return head == CONTENT_TYPE and value[16:17] in (b"", b"+", b";", b" ")


def encode_bin(value: bytes) -> bytes:
    """A value for a ``-bin`` header: base64 without padding."""
    return base64.b64encode(value).rstrip(b"=")


def decode_bin(value: bytes) -> bytes:
    """The value of a ``-bin`` header, padded or not. Raises LayaError INVALID_ARGUMENT when it is not base64."""
    try:
        return base64.b64decode(value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("A header whose name ends in -bin is not base64.") from None


def error_from_trailers(headers: Headers) -> LayaError | None:
    """None for status OK; else the error that the peer sent, with reason, retry time and field where it told them.

    A missing or unreadable status is an error itself (UNKNOWN).
    """
    status = message = details = None
    for name, value in headers:
        if name == b"grpc-status":
            status = value
        elif name == b"grpc-message":
            message = value
        elif name == b"grpc-status-details-bin":
            details = value
    if status == b"0":
        return None
    if status is None:
        return LayaError(Code.UNKNOWN, "NO_STATUS", "The peer ended the stream without a gRPC status.")
    known = status.isdigit() and len(status) <= 2 and int(status) <= Code.UNAUTHENTICATED
    code = Code(int(status)) if known else Code.UNKNOWN
    text = percent_decode(message) if message else f"The peer answered {code.name} without a message."
    if details is not None:
        return _error_with_details(code, text, details)
    return LayaError(code, code.name, text)


def _error_with_details(code: Code, text: str, details: bytes) -> LayaError:
    # Imported here: only an error path needs them.
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    reason = code.name
    retry: float | None = None
    param: str | None = None
    metadata: dict[str, str] | None = None
    try:
        for part in status_pb2.Status.FromString(decode_bin(details)).details:
            if part.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(part.value)
                reason, metadata = info.reason or reason, dict(info.metadata) or None
            elif part.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(part.value).retry_delay
                retry = delay.seconds + delay.nanos / 1e9
            elif part.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                violations = error_details_pb2.BadRequest.FromString(part.value).field_violations
                param = violations[0].field if violations else None
    except (DecodeError, LayaError):
        pass  # the status and its message stand on their own
    return LayaError(code, reason, text, retry_after=retry, param=param, metadata=metadata)


_FROM_HTTP = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}


def error_from_response(headers: Headers) -> LayaError | None:
    """None for response headers that a gRPC answer may have; else why they are not one."""
    status = b"200"
    kind = b""
    for name, value in headers:
        if name == b":status":
            status = value
        elif name == b"content-type":
            kind = value
        elif name == b"grpc-status":
            return None  # trailers-only: the status speaks for itself
    if status != b"200":
        code = _FROM_HTTP.get(int(status) if status.isdigit() else 0, Code.UNKNOWN)
        return LayaError(code, "NOT_GRPC", f"The peer answered HTTP {status.decode('ascii', 'replace')}, not gRPC.")
    if not is_grpc_type(kind):
        shown = kind[:64].decode("ascii", "replace")
        return LayaError(Code.UNKNOWN, "NOT_GRPC", f"The peer answered with content-type {shown!r}, which is not gRPC.")
    return None


def error_from_reset(code: int, unprocessed: bool = False) -> LayaError:
    """The error of a stream that ended without a status: ``code`` is the HTTP/2 error code.

    A lost connection and a peer that cancels look alike (code 8); both are UNAVAILABLE to a caller who did not cancel.
    """
    if unprocessed:
        return LayaError(Code.UNAVAILABLE, "REFUSED", "The peer did not take the call: try again.")
    if code == 0x8:
        return LayaError(Code.UNAVAILABLE, "NODE_LOST", "The connection was lost before the call was complete.")
    if code == 0x7:
        return LayaError(Code.UNAVAILABLE, "REFUSED", "The peer refused the call: try again later.")
    if code == 0xB:
        return LayaError(Code.RESOURCE_EXHAUSTED, "ENHANCE_YOUR_CALM", "The peer asks for fewer calls: try later.")
    if code == 0xC:
        return LayaError(Code.PERMISSION_DENIED, "INADEQUATE_SECURITY", "The peer asks for a stronger TLS connection.")
    return LayaError(Code.INTERNAL, "STREAM_RESET", f"The peer reset the call with HTTP/2 error {code}.")
